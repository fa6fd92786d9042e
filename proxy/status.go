package proxy

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/nftables"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A Status is the state of a Proxy, for people.
type Status struct {
	// Mode is nftables or iptables, and Programs the iptables programs in use, one for each family.
	// ModeReason is why nftables is not used although the mode is auto.
	Mode       Mode     `json:"mode"`
	Programs   []string `json:"programs,omitempty"`
	ModeReason string   `json:"modeReason,omitempty"`
	// NFTReason is why a newer nft than the first one on this node or in the image loads the rules.
	NFTReason string `json:"nftReason,omitempty"`
	// ModeError is why rules of another mode are not removed yet.
	ModeError string `json:"modeError,omitempty"`
	// Unsupported lists, for each frontend, what this mode cannot do, and what it does instead.
	Unsupported []string `json:"unsupported,omitempty"`

	Schema     int    `json:"schema"`
	Generation uint64 `json:"generation"` // transactions since the start

	// What the kernel forwards. Backends counts an endpoint once for each of its frontends.
	VIPs      int `json:"vips"`
	Frontends int `json:"frontends"`
	Backends  int `json:"backends"`

	// Repairs counts how often the table differed from what was written. Found is the last
	// difference.
	Repairs    uint64    `json:"repairs"`
	LastRepair time.Time `json:"lastRepair,omitzero"`
	Found      string    `json:"found,omitempty"`

	// AffinityFull are the frontends with affinity that had more clients than they can record.
	AffinityFull []AffinityFull `json:"affinityFull,omitempty"`

	// LastError is the error of the last Set, empty if it succeeded.
	LastError string `json:"lastError,omitempty"`
	// ConntrackError is why stale conntrack entries are not deleted yet.
	ConntrackError string `json:"conntrackError,omitempty"`

	// ForwardOpened are the iptables programs of this node, such as iptables-nft, whose chain
	// FORWARD would drop Fanfare's traffic and has Fanfare's rule that accepts it.
	ForwardOpened []string `json:"forwardOpened,omitempty"`
	// ForwardError is why FORWARD may still drop it.
	ForwardError string `json:"forwardError,omitempty"`

	// RedirectError is why connections to addresses that moved to this node end, instead of being
	// redirected to the previous owner.
	RedirectError string `json:"redirectError,omitempty"`

	// FastPath describes flows that bypass the rules; absent if the fast path is off.
	FastPath *FastPathStatus `json:"fastPath,omitempty"`

	// Obstacles are other things on this node that block traffic to VIPs, as of the last look. A
	// look follows a change of nftables soon, and each comparison with the kernel. Unseen says what
	// could not be checked, and why.
	Obstacles []obstacle.Obstacle `json:"obstacles,omitempty"`
	Unseen    []string            `json:"unseen,omitempty"`
}

// AffinityFull is a frontend with affinity that forgets clients for others. In iptables mode the
// kernel evicts without counting, and not the least recent ones.
type AffinityFull struct {
	Frontend string `json:"frontend"` // such as "192.0.2.1 tcp/80 shop/web:http"
	// Evicted counts the clients that were evicted for others, since the start; 0 in iptables mode.
	Evicted uint64 `json:"evicted"`
	// Last is when the map was last full; in iptables mode, now.
	Last time.Time `json:"last"`
}

// affinityFull returns the frontends that filled the map of clients or, in iptables mode, a set.
func affinityFull(have State, full map[state.AffinityKey]nftables.AffinityOverflow,
	sets []string) (all []AffinityFull) {
	if len(full) == 0 && len(sets) == 0 {
		return nil
	}
	for v := range have.VIPs.All() {
		for i := range v.Frontends {
			f := &v.Frontends[i]
			if f.Affinity == 0 {
				continue
			}
			n, is := full[state.AffinityOf(v.Addr, state.Port{Proto: f.Protocol, Port: f.Port})]
			if slices.ContainsFunc(slices.Concat(f.External.Backends, f.Internal.Backends), func(b Backend) bool {
				return slices.Contains(sets, iptables.AffinityName(v, f, b))
			}) {
				is, n.Last = true, time.Now()
			}
			if is {
				all = append(all, AffinityFull{strings.TrimSpace(f.Label(v) + " " + f.Name), n.Evicted, n.Last})
			}
		}
	}
	return all
}

// A record stores what Status returns. It has its own lock, so that Status does not wait for the
// kernel.
type record struct {
	mu     sync.Mutex
	status Status
	have   State
}

// set records the outcome of a Set.
func (r *record) set(have State, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.have, r.status.LastError = have, errorText(err)
}

// update changes the status, which must not be kept.
func (r *record) update(change func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.status)
}

// errorText is the text of an error, empty for none.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// state returns the State that the kernel holds.
func (r *record) state() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.have
}

func (r *record) get() Status {
	r.mu.Lock()
	s, have := r.status, r.have
	r.mu.Unlock()
	s.Schema = nftables.Schema
	s.VIPs = have.VIPs.Len()
	for v := range have.VIPs.All() {
		s.Frontends += len(v.Frontends)
		for i := range v.Frontends {
			s.Backends += countBackends(&v.Frontends[i])
		}
	}
	return s
}

// countBackends counts the endpoints of both targets, each once.
func countBackends(f *Frontend) int {
	a, b := f.External.Backends, f.Internal.Backends
	both := 0
	for i, j := 0, 0; i < len(a) && j < len(b); {
		order := a[i].Addr.Compare(b[j].Addr)
		if order == 0 {
			both++
		}
		if order <= 0 {
			i++
		}
		if order >= 0 {
			j++
		}
	}
	return len(a) + len(b) - both
}
