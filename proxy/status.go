package proxy

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/nftables"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A Status is what a Proxy has done, for people.
type Status struct {
	// Mode is nftables or iptables, and Programs the iptables that are used, one for
	// each family. ModeReason is why it is not nftables where either would do.
	Mode       Mode     `json:"mode"`
	Programs   []string `json:"programs,omitempty"`
	ModeReason string   `json:"modeReason,omitempty"`
	// ModeError is why rules of another mode are still there.
	ModeError string `json:"modeError,omitempty"`
	// Unsupported is what of the State this mode cannot do, frontend by frontend,
	// and does otherwise.
	Unsupported []string `json:"unsupported,omitempty"`

	Schema     int    `json:"schema"`
	Generation uint64 `json:"generation"` // transactions since the start

	// What the kernel forwards. Backends counts an endpoint once for every
	// frontend that it stands behind.
	VIPs      int `json:"vips"`
	Frontends int `json:"frontends"`
	Backends  int `json:"backends"`

	// Repairs counts the times that the table was not what had been written.
	// Found says what was wrong the last time.
	Repairs    uint64    `json:"repairs"`
	LastRepair time.Time `json:"lastRepair,omitzero"`
	Found      string    `json:"found,omitempty"`

	// AffinityFull are the frontends with affinity that had more clients than they can remember.
	AffinityFull []AffinityFull `json:"affinityFull,omitempty"`

	// LastError is that of the last Set, empty when it did all it should.
	LastError string `json:"lastError,omitempty"`
	// ConntrackError is why entries that changes made wrong are still there.
	ConntrackError string `json:"conntrackError,omitempty"`

	// ForwardOpened are the iptables of this node, such as iptables-nft, whose chain
	// FORWARD would drop our traffic and has our rule that accepts it.
	ForwardOpened []string `json:"forwardOpened,omitempty"`
	// ForwardError is why it may still be dropped there.
	ForwardError string `json:"forwardError,omitempty"`

	// RedirectError is why connections to addresses that moved to this node end instead of
	// being redirected to the previous owner.
	RedirectError string `json:"redirectError,omitempty"`

	// FastPath is what goes past the rules; absent where it is off.
	FastPath *FastPathStatus `json:"fastPath,omitempty"`

	// Obstacles are what else on this node is in the way of traffic to VIPs, as far as the
	// last look showed: soon after a change of nftables, and every time that the kernel is
	// compared. Unseen is what could not be looked at, and why.
	Obstacles []Obstacle `json:"obstacles,omitempty"`
	Unseen    []string   `json:"unseen,omitempty"`
}

// AffinityFull is a frontend with affinity that forgets the clients of longest ago.
type AffinityFull struct {
	Frontend string `json:"frontend"` // such as "192.0.2.1 tcp/80 shop/web:http"
	// Unremembered counts new flows whose clients found no place, and Evicted the clients that were
	// forgotten for others, since the start.
	Unremembered uint64 `json:"unremembered"`
	Evicted      uint64 `json:"evicted"`
	// Last is when it was full the last time.
	Last time.Time `json:"last"`
}

// affinityFull is what of a Proxy's frontends is full.
func affinityFull(have State, full map[state.AffinityID]nftables.AffinityOverflow, sets []string) (all []AffinityFull) {
	if len(full) == 0 && len(sets) == 0 {
		return nil
	}
	for _, v := range have.VIPs {
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
				all = append(all, AffinityFull{strings.TrimSpace(f.Label(v) + " " + f.Name), n.Unremembered, n.Evicted, n.Last})
			}
		}
	}
	return all
}

// A record keeps what Status returns. It has a lock of its own, so that Status
// does not wait for the kernel.
type record struct {
	mu     sync.Mutex
	status Status
	have   State
}

// set records the outcome of a Set.
func (r *record) set(have State, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.have = have
	r.status.LastError = ""
	if err != nil {
		r.status.LastError = err.Error()
	}
}

func (r *record) unsupported(all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Unsupported = all
}

// mode records what was chosen, before there is anything else to report.
func (r *record) mode(m Mode, programs []string, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Mode, r.status.Programs, r.status.ModeReason = m, programs, why
}

// left records what became of the rules of another mode.
func (r *record) left(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.ModeError = ""
	if err != nil {
		r.status.ModeError = err.Error()
	}
}

func (r *record) transaction() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Generation++
}

func (r *record) repaired(found string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Repairs++
	r.status.LastRepair = time.Now()
	r.status.Found = found
}

// redirect records the outcome of the redirects, and returns the error of the last time.
func (r *record) redirect(err error) (before string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, r.status.RedirectError = r.status.RedirectError, ""
	if err != nil {
		r.status.RedirectError = err.Error()
	}
	return before
}

// forward records what became of FORWARD, and returns the error of the last time.
func (r *record) forward(opened []string, err error) (before string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, r.status.ForwardError = r.status.ForwardError, ""
	if err != nil {
		r.status.ForwardError = err.Error()
	}
	r.status.ForwardOpened = opened
	return before
}

// state is the State that the kernel holds.
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
	s.VIPs = len(have.VIPs)
	for _, v := range have.VIPs {
		s.Frontends += len(v.Frontends)
		for i := range v.Frontends {
			s.Backends += countBackends(&v.Frontends[i])
		}
	}
	return s
}

// countBackends counts the endpoints of both targets, those of both once.
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
