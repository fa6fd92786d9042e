package state

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// familyKeys are the families as keys of a map, indexed like the SetIDs of a pair.
var familyKeys = [...]string{string([]byte{unix.NFPROTO_IPV4}), string([]byte{unix.NFPROTO_IPV6})}

// renderSNAT returns the elements for source addresses and ports, none for the defaults.
func renderSNAT(s SNAT) []Element {
	var all []Element
	for _, p := range s.Never {
		all = append(all, prefixElement(SetNever, p))
	}
	for f, key := range familyKeys {
		from := s.Source(SetID(f))
		if from.IsValid() {
			all = append(all, Element{Set: SetFrom + SetID(f), Key: key, Data: string(from.AsSlice())})
		}
		if name := s.Ports.chain(from.IsValid()); name != chainDefaultSource {
			all = append(all, Element{Set: SetSources, Key: key, Data: name})
		}
		if s.Mark != (Mark{}) {
			all = append(all, Element{Set: SetMarks, Key: key, Data: s.Mark.Chain()})
		}
	}
	return all
}

// chainDefaultSource is not a chain of its own: it is the end of new-source.
const chainDefaultSource = "masquerade-fully-random"

// Source is the source address for a family; zero: the interface's.
func (s SNAT) Source(f SetID) netip.Addr {
	for _, a := range s.Sources {
		if Family(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// chain returns the chain for a flow whose source is replaced.
func (p Ports) chain(chosen bool) string {
	if chosen {
		return "snat-" + p.String()
	}
	return "masquerade-" + p.String()
}

const markPrefix = "mark-"

// Chain is the chain that sets the mark: "mark-0x4000-0x4000".
func (m Mark) Chain() string { return fmt.Sprintf("%s%#x-%#x", markPrefix, m.Value, m.Mask) }

// ParseMarkChain returns the mark in the name of a mark chain.
func ParseMarkChain(name string) (m Mark, ok bool) {
	value, mask, _ := strings.Cut(strings.TrimPrefix(name, markPrefix), "-")
	v, err1 := strconv.ParseUint(value, 0, 32)
	k, err2 := strconv.ParseUint(mask, 0, 32)
	m = Mark{Value: uint32(v), Mask: uint32(k)}
	return m, err1 == nil && err2 == nil && m.Chain() == name
}

func (s SNAT) equal(o SNAT) bool {
	return s.Ports == o.Ports && s.Mark == o.Mark && slices.Equal(s.Sources, o.Sources) &&
		slices.Equal(s.Never, o.Never)
}

func (s SNAT) validate() error {
	errs := []error{validatePrefixes("snat: never", s.Never)}
	if s.Ports > PortKept {
		errs = append(errs, fmt.Errorf("snat: ports is %d; want PortFullyRandom, PortRandom or PortKept", s.Ports))
	}
	if m := s.Mark; m.Value&^m.Mask != 0 {
		errs = append(errs, fmt.Errorf("snat: mark %s has bits outside of its mask; want a mask with "+
			"all bits of the value", m))
	}
	for i, a := range s.Sources {
		switch {
		case !isUnicast(a):
			errs = append(errs, fmt.Errorf("snat: source %s: want a unicast IPv4 or IPv6 address without a zone", a))
		case slices.ContainsFunc(s.Sources[:i], func(b netip.Addr) bool { return Family(a) == Family(b) }):
			errs = append(errs, fmt.Errorf("snat: source %s is the second of its family; want one of each at most", a))
		}
	}
	return errors.Join(errs...)
}

// text has one line for every setting that is not the default.
func (s SNAT) text() string {
	var b strings.Builder
	if s.Ports != PortFullyRandom {
		fmt.Fprintf(&b, "snat ports %s\n", s.Ports)
	}
	for _, a := range s.Sources {
		fmt.Fprintf(&b, "snat source %s\n", a)
	}
	for _, p := range s.Never {
		fmt.Fprintf(&b, "snat never %s\n", p)
	}
	if s.Mark != (Mark{}) {
		fmt.Fprintf(&b, "snat mark %s\n", s.Mark)
	}
	return b.String()
}

func (m Mark) String() string { return fmt.Sprintf("%#x/%#x", m.Value, m.Mask) }

func (p Ports) String() string {
	switch p {
	case PortFullyRandom:
		return "fully-random"
	case PortRandom:
		return "random"
	case PortKept:
		return "kept"
	default:
		return "ports " + strconv.Itoa(int(p))
	}
}

// masquerades reports whether any backend receives masqueraded flows.
func (v *VIP) masquerades(node string) bool {
	return slices.ContainsFunc(v.Frontends, func(f Frontend) bool {
		return slices.ContainsFunc([]*Target{&f.External, &f.Internal}, func(t *Target) bool {
			return slices.ContainsFunc(t.Backends, func(b Backend) bool { return t.Masks(b, node) })
		})
	})
}

// Masks reports whether a backend sees another source than the client's address.
func (t *Target) Masks(b Backend, node string) bool { return t.Remote == Masquerade && b.Node != node }
