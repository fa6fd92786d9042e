package l2

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A Phase is how far an address has come.
type Phase string

const (
	// Held: the address is answered for. Only these are what Set returns.
	Held Phase = "Held"
	// Probing: the link is asked whether somebody else uses it.
	Probing Phase = "Probing"
	// Waiting: there is no interface to answer on.
	Waiting Phase = "Waiting"
	// Conflicting: somebody else uses it. It is probed again after a while.
	Conflicting Phase = "Conflicting"
)

// A Status is what is so about one address of the State.
type Status struct {
	Addr  netip.Addr `json:"addr"`
	Phase Phase      `json:"phase"`
	Since time.Time  `json:"since"` // of the phase
	// Interfaces are those that it is answered for on, or asked about, sorted.
	Interfaces []string `json:"interfaces,omitempty"`
	// Reason says why the address is not held, for an operator; empty when it is.
	Reason string `json:"reason,omitempty"`
	// Conflict is the newest one, nil while there was none. One that was defended
	// against leaves the address Held.
	Conflict *Conflict `json:"conflict,omitempty"`
}

// A Conflict is that somebody else, no speaker, uses an address of the State.
type Conflict struct {
	MAC       MAC       `json:"mac"`
	Interface string    `json:"interface"` // on which that was heard
	When      time.Time `json:"when"`
	// Count is how often since the address came into the State.
	Count int `json:"count"`
	// Known are other addresses of this MAC, by the kernel's neighbour table, and
	// Gateway says whether one of them is a gateway of this node.
	Known   []netip.Addr `json:"known,omitempty"`
	Gateway bool         `json:"gateway,omitempty"`
	// Others is how many more addresses of the State the same MAC answers for:
	// with any, it is likely a router with proxy ARP, and no duplicate.
	Others int `json:"others,omitempty"`
}

// String names the other in an operator's words.
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
		fmt.Fprintf(&b, ", and for %d more of our addresses: if it is a router, switch off its proxy ARP on this link", c.Others)
	case c.Gateway:
		b.WriteString(": switch off its proxy ARP on this link, or take the address from it")
	default:
		b.WriteString(": take the address from it, or out of the pool")
	}
	return b.String()
}

// A Problem is something on this node that is in the way of answering, or that
// answers in the place of the node that should.
type Problem struct {
	Interface string     `json:"interface"`
	Addr      netip.Addr `json:"addr,omitzero"` // the first that it concerns; invalid: all
	Count     int        `json:"count"`         // how many addresses it concerns
	// Message says what is wrong and what would be right, for an operator.
	Message string `json:"message"`
}

// Status says what is so now about each address of the State, sorted.
func (a *Announcer) Status() []Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	others := make(map[MAC]int)
	for _, x := range a.addresses {
		if x.conflict != nil {
			others[x.conflict.MAC]++
		}
	}
	all := make([]Status, 0, len(a.want.Addresses))
	for _, w := range a.want.Addresses {
		x := a.addresses[w.Addr]
		if x == nil {
			continue // a State that is being taken up
		}
		st := Status{Addr: w.Addr, Phase: x.phase, Since: x.since, Interfaces: x.names()}
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

func (x *address) names() []string {
	var names []string
	for _, c := range x.claims {
		names = append(names, c.port.iface.Name)
	}
	slices.Sort(names)
	return names
}

// why says why an address is not held.
func (a *Announcer) why(x *address, c *Conflict) string {
	switch x.phase {
	case Probing:
		return "asking on " + strings.Join(x.names(), ", ") + " whether somebody else has it"
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
		if err := a.failures[portKey{i.Index, protocolOf(x.want.Addr)}]; err != nil && i.Carries(x.want) {
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
