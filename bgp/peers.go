package bgp

import (
	"slices"
	"strings"
)

// Peers is a comparable set of sessions: their names, sorted and joined by commas, which names
// cannot contain. Empty: all sessions.
type Peers string

// PeersOf returns a set of names.
func PeersOf(names ...string) Peers {
	names = slices.Clone(names)
	slices.Sort(names)
	return Peers(strings.Join(slices.Compact(names), ","))
}

// Has reports whether a session is in the set.
func (p Peers) Has(name string) bool {
	return p == "" || slices.Contains(p.Names(), name)
}

// Names returns the sessions of a set, which must not be all.
func (p Peers) Names() []string { return strings.Split(string(p), ",") }

func (p Peers) String() string { return strings.ReplaceAll(string(p), ",", ", ") }
