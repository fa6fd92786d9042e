package bgp

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// compareRoutes is netip.Prefix.Compare for prefixes that have no bits beyond
// their length, as those of routes have not. Set calls it for every route.
func compareRoutes(a, b Route) int {
	if c := a.Prefix.Addr().Compare(b.Prefix.Addr()); c != 0 {
		return c
	}
	return cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits())
}

func compareSessions(a, b Session) int { return strings.Compare(a.Name, b.Name) }

// diff compares two sorted lists. What changed under the same key is in both
// results: take the old away, then add the new. A replacement that needs no
// taking away, because the protocol replaces in place, is dropped from del by
// the caller.
func diff[T comparable](have, want []T, compare func(a, b T) int) (del, add []T) {
	for len(have) > 0 && len(want) > 0 {
		if have[0] == want[0] {
			have, want = have[1:], want[1:]
			continue
		}
		switch c := compare(have[0], want[0]); {
		case c < 0:
			del, have = append(del, have[0]), have[1:]
		case c > 0:
			add, want = append(add, want[0]), want[1:]
		default:
			del, add = append(del, have[0]), append(add, want[0])
			have, want = have[1:], want[1:]
		}
	}
	return append(del, have...), append(add, want...)
}

// diffRoutes says what to withdraw and what to announce. A route that only gets
// another next hop is announced and not withdrawn before: the UPDATE replaces
// the old one without a gap (RFC 4271 §3.1). It is withdrawn when it loses its
// next hop: then it may be one that some routers can no longer be told (see
// exportable), and GoBGP, asking its policy about the new route's next hop for
// the old route as well, would leave the old one standing there.
func diffRoutes(have, want []Route) (withdraw, announce []Route) {
	if sameSlice(have, want) {
		return nil, nil
	}
	withdraw, announce = diff(have, want, compareRoutes)
	withdraw = slices.DeleteFunc(withdraw, func(old Route) bool {
		i, ok := slices.BinarySearchFunc(announce, old, compareRoutes)
		return ok && (announce[i].NextHop.IsValid() || !old.NextHop.IsValid())
	})
	return withdraw, announce
}

func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// sections parts withdraw into what has to go before announce and what must not:
// the more so as the address of a route that goes may be in one that comes.
func sections(withdraw, announce []Route) (first, last []Route) {
	for _, r := range withdraw {
		if _, replaced := slices.BinarySearchFunc(announce, r, compareRoutes); replaced {
			first = append(first, r)
		} else {
			last = append(last, r)
		}
	}
	return first, last
}

// exportable tells whether a router can be told r over a session of the given
// transport family. A route without a next hop of its own gets the session's
// source address, which is of no use for the other family's prefixes.
func exportable(r Route, session4 bool) bool {
	return r.NextHop.IsValid() || r.Prefix.Addr().Is4() == session4
}

// announced are the prefixes of routes that the router of at least one of
// sessions is told, or will be told once its session is up.
func announced(routes []Route, sessions []Session) []netip.Prefix {
	prefixes := make([]netip.Prefix, 0, len(routes))
	for _, r := range routes {
		if slices.ContainsFunc(sessions, func(s Session) bool { return r.Peers.Has(s.Name) && exportable(r, s.PeerAddress.Is4()) }) {
			prefixes = append(prefixes, r.Prefix)
		}
	}
	return prefixes
}
