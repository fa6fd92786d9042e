package state

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// String is the state in words, one line for every address, frontend and
// setting:
//
//	node n1
//	owned 192.0.2.0/24
//	client 10.244.1.0/24
//	redirect 192.0.2.1 from eth0 to 10.0.0.2, onward to 10.0.0.3, beyond to none
//	192.0.2.1 tcp/80 shop/web:http external 10.244.1.11:8080@n1 internal 10.244.1.11:8080@n1 10.244.2.11:8080@n2; miss drop
//
// A weight other than one follows the node, as in 10.244.1.11:8080@n1*3.
// "masquerade" stands before backends on other nodes that see this node's
// address instead of the client's, "none" for no backends, "sources" before the
// networks that may use the frontend where not all may, "draining" before backends that
// keep the flows that they have, miss only where a target has none, scheduler
// where it is not random, and affinity where there is one. An address without
// frontends stands alone.
func (s State) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "node %s\n", s.Node)
	for _, p := range s.Owned {
		fmt.Fprintf(&b, "owned %s\n", p)
	}
	b.WriteString(s.Clients.text())
	b.WriteString(s.SNAT.text())
	for _, name := range s.Outward {
		fmt.Fprintf(&b, "outward %s\n", name)
	}
	for _, h := range s.Redirects {
		fmt.Fprintf(&b, "redirect %s from %s to %s, onward to %s, beyond to %s\n", h.VIP, h.Interface, hopText(h.Via),
			hopText(h.Onward), hopText(h.Beyond))
	}
	for v := range s.VIPs.All() {
		if len(v.Frontends) == 0 {
			fmt.Fprintf(&b, "%s\n", v.Addr)
		}
		for i := range v.Frontends {
			b.WriteString(v.Frontends[i].Text(v, s.Node))
		}
	}
	return b.String()
}

// hopText names the target of a redirect.
func hopText(to netip.Addr) string {
	if !to.IsValid() {
		return "none"
	}
	return to.String()
}

func (c LocalClients) text() string {
	var b strings.Builder
	for _, p := range c.CIDRs {
		fmt.Fprintf(&b, "client %s\n", p)
	}
	if c.InterfacePrefix != "" {
		fmt.Fprintf(&b, "client interface %s*\n", c.InterfacePrefix)
	}
	if c.Bridge != "" {
		fmt.Fprintf(&b, "client bridge %s\n", c.Bridge)
	}
	return b.String()
}

func (f *Frontend) Text(v *VIP, node string) string {
	words := []string{f.Label(v)}
	if f.Name != "" {
		words = append(words, f.Name)
	}
	words = append(words, "external", f.External.text(node), "internal", f.Internal.text(node))
	words = append(words, f.sourcesText()...)
	if len(f.Draining) > 0 {
		words = append(words, "draining")
	}
	for _, b := range f.Draining {
		words = append(words, b.String())
	}
	text := strings.Join(words, " ") + missText(&f.External, &f.Internal)
	if f.Scheduler != Random {
		text += "; scheduler " + f.Scheduler.String()
	}
	if f.Affinity != 0 {
		text += "; affinity " + f.Affinity.String()
	}
	return text + "\n"
}

func (f *Frontend) sourcesText() []string {
	switch {
	case f.Sources == nil:
		return nil
	case len(f.Sources) == 0:
		return []string{"sources none"}
	}
	words := []string{"sources"}
	for _, p := range f.Sources {
		words = append(words, p.String())
	}
	return words
}

// text lists the backends, masqueraded ones last.
func (t *Target) text(node string) string {
	var plain, masqueraded []string
	for _, b := range t.Backends {
		word := b.Addr.String() + "@" + b.Node
		if b.EffectiveWeight() != 1 {
			word += "*" + strconv.Itoa(b.EffectiveWeight())
		}
		if t.Masks(b, node) {
			masqueraded = append(masqueraded, word)
		} else {
			plain = append(plain, word)
		}
	}
	switch {
	case len(t.Backends) == 0:
		return "none"
	case len(masqueraded) > 0:
		plain = append(plain, "masquerade")
	}
	return strings.Join(append(plain, masqueraded...), " ")
}

// missText says what happens to flows without a backend.
func missText(external, internal *Target) string {
	x, i := len(external.Backends) == 0, len(internal.Backends) == 0
	switch {
	case x && i && external.Miss != internal.Miss:
		return fmt.Sprintf("; miss external %s internal %s", external.Miss, internal.Miss)
	case x:
		return "; miss " + external.Miss.String()
	case i:
		return "; miss " + internal.Miss.String()
	default:
		return ""
	}
}

func (m Miss) String() string {
	switch m {
	case Reject:
		return "reject"
	case Drop:
		return "drop"
	default:
		return "miss " + strconv.Itoa(int(m))
	}
}

func (s Scheduler) String() string {
	switch s {
	case Random:
		return "random"
	case RoundRobin:
		return "round robin"
	case SourceHash:
		return "source hash"
	case Maglev:
		return "maglev"
	default:
		return "scheduler " + strconv.Itoa(int(s))
	}
}

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	default:
		return strconv.Itoa(int(p))
	}
}
