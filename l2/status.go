package l2

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A Phase is the state of an address.
type Phase string

const (
	// Held: this node answers for the address. Set returns only these.
	Held Phase = "Held"
	// Probing: the link is probed for another host that uses the address. Requests are answered
	// once the first probe has found none; nothing is announced.
	Probing Phase = "Probing"
	// Waiting: no interface can answer for the address.
	Waiting Phase = "Waiting"
	// Conflicting: another host uses the address. It is probed again later.
	Conflicting Phase = "Conflicting"
)

// A Status describes one address of the State.
type Status struct {
	Addr  netip.Addr `json:"addr"`
	Phase Phase      `json:"phase"`
	Since time.Time  `json:"since"` // when the phase began
	// Interfaces are those where the address is answered for or probed, sorted.
	Interfaces []string `json:"interfaces,omitempty"`
	// WasHeld: the address was Held since it was added to the State.
	WasHeld bool `json:"wasHeld,omitempty"`
	// Reason says why the address is not held; empty when it is.
	Reason string `json:"reason,omitempty"`
	// Conflict is the latest conflict, nil if there was none. The address remains Held
	// unless it yields.
	Conflict *Conflict `json:"conflict,omitempty"`
}

// A Conflict is a host other than a speaker that uses an address of the State.
type Conflict struct {
	MAC       MAC       `json:"mac"`
	Interface string    `json:"interface"` // that received the packet
	When      time.Time `json:"when"`      // of the latest packet
	// Count is the number of conflicts since the address was added to the State.
	Count int `json:"count"`
	// Known are other addresses of this MAC in the kernel's neighbour table, and Gateway
	// says whether one of them is a gateway of this node.
	Known   []netip.Addr `json:"known,omitempty"`
	Gateway bool         `json:"gateway,omitempty"`
	// Others is how many more addresses of the State the same MAC answers for. If there are
	// any, the host is likely a router with proxy ARP.
	Others int `json:"others,omitempty"`
}

// again returns the conflict with one more packet. Status has returned the old value, which
// must not be modified.
func (c *Conflict) again(now time.Time) *Conflict {
	if c == nil {
		return nil // it was a speaker's
	}
	more := *c
	more.When, more.Count = now, c.Count+1
	return &more
}

func (c *Conflict) count() int {
	if c == nil {
		return 0
	}
	return c.Count
}

// String describes the other host, and what to do about it, for an operator.
func (c Conflict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s answers for it on %s", c.MAC, c.Interface)
	if len(c.Known) > 0 {
		fmt.Fprintf(&b, ", which is %s", c.Known[0])
		if len(c.Known) > 1 {
			fmt.Fprintf(&b, " and %d more", len(c.Known)-1)
		}
		if c.Gateway {
			b.WriteString(", a gateway of this node")
		}
	}
	switch {
	case c.Others > 0:
		fmt.Fprintf(&b, ", and for %d more addresses of the pools: if it is a router, switch off its "+
			"proxy ARP on this link", c.Others)
	case c.Gateway:
		b.WriteString(": switch off its proxy ARP on this link, or take the address from it")
	default:
		b.WriteString(": take the address from it, or out of the pool")
	}
	return b.String()
}

// A Problem is a setting of this node that prevents answering, or makes the kernel answer
// instead of the node that should.
type Problem struct {
	Interface string     `json:"interface"`
	Addr      netip.Addr `json:"addr,omitzero"` // the first address concerned; invalid: all
	Count     int        `json:"count"`         // how many addresses are concerned
	// Message says what is wrong and what would be right, for an operator.
	Message string `json:"message"`
}

// Status describes each address of the State, sorted.
func (a *Announcer) Status() []Status {
	a.phases.mu.Lock()
	defer a.phases.mu.Unlock()
	others := make(map[MAC]int)
	for _, x := range a.phases.addresses {
		if x.conflict != nil {
			others[x.conflict.MAC]++
		}
	}
	all := make([]Status, 0, len(a.want.Addresses))
	for _, w := range a.want.Addresses {
		x := a.phases.addresses[w.Addr]
		if x == nil {
			continue // the State is still being applied
		}
		st := Status{Addr: w.Addr, Phase: x.phase, Since: x.since, Interfaces: x.names(), WasHeld: x.wasHeld}
		if x.conflict != nil {
			c := *x.conflict
			c.Others = others[c.MAC] - 1
			st.Conflict = &c
		}
		st.Reason = a.why(x, st.Conflict)
		all = append(all, st)
	}
	return all
}

func (a *address) names() []string {
	var names []string
	for _, c := range a.claims {
		names = append(names, c.socket.iface.Name)
	}
	slices.Sort(names)
	return names
}

// why says why an address is not held.
func (a *Announcer) why(x *address, c *Conflict) string {
	switch x.phase {
	case Probing:
		return "probing on " + strings.Join(x.names(), ", ") + ", to detect another host that has it"
	case Conflicting:
		return c.String()
	case Waiting:
		return a.whyWaiting(x)
	default:
		return ""
	}
}

func (a *Announcer) whyWaiting(x *address) string {
	for _, i := range a.interfaces {
		if err := a.failures[socketKey{i.Index, protocolOf(x.want.Addr)}]; err != nil && i.Carries(x.want) {
			return err.Error()
		}
	}
	subnet := "has its subnet"
	if names := x.want.Interfaces; len(names) > 0 {
		subnet = "is named " + strings.Join(names, " or ")
	}
	for _, i := range a.interfaces {
		if x.want.Addr.Is6() && !i.IPv6 && slices.Contains(x.want.Interfaces, i.Name) {
			return "IPv6 is switched off on " + i.Name
		}
	}
	return "no interface that is up, has a carrier and is no port of another one " + subnet
}
