package bgp

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// compareRoutes is a faster netip.Prefix.Compare, for prefixes without bits beyond their length, as
// routes have. Set calls it for every route.
func compareRoutes(a, b Route) int {
	if c := a.Prefix.Addr().Compare(b.Prefix.Addr()); c != 0 {
		return c
	}
	return cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits())
}

func compareSessions(a, b Session) int { return strings.Compare(a.Name, b.Name) }

// diff compares two sorted lists. An element that changed under the same key is in both results:
// delete the old one, then add the new one. If the protocol replaces in place, the caller removes
// it from del.
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

// diffRoutes returns what to withdraw and what to announce. A route that is now for other routers,
// or has other attributes, is only announced: the UPDATE replaces the old route without a gap (RFC
// 4271 §3.1).
func diffRoutes(have, want []Route) (withdraw, announce []Route) {
	if sortedset.Same(have, want) {
		return nil, nil
	}
	withdraw, announce = diff(have, want, compareRoutes)
	withdraw = slices.DeleteFunc(withdraw, func(old Route) bool {
		_, replaced := slices.BinarySearchFunc(announce, old, compareRoutes)
		return replaced
	})
	return withdraw, announce
}

// announced returns the prefixes of routes that at least one router receives, or will once its
// session is up: only then is it known whether a router over IPv6 accepts IPv4. It returns last if
// that is equal.
func announced(last []netip.Prefix, routes []Route, sessions []Session) []netip.Prefix {
	type kind struct {
		peers Peers
		is4   bool
	}
	sent := map[kind]bool{}
	now, is := kind{}, false // of most routes
	draft := sortedset.Draft[netip.Prefix]{Last: last, Cap: len(routes)}
	for i := range routes {
		k := kind{routes[i].Peers, routes[i].Prefix.Addr().Is4()}
		if i == 0 || k != now {
			known := false
			if is, known = sent[k]; !known {
				is = slices.ContainsFunc(sessions, func(s Session) bool { return k.peers.Has(s.Name) && s.carries(k.is4) })
				sent[k] = is
			}
			now = k
		}
		if is {
			draft.Add(routes[i].Prefix, sortedset.Equal)
		}
	}
	return draft.List()
}
