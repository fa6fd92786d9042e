package bgp

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

func compareSessions(a, b Session) int { return strings.Compare(a.Name, b.Name) }

// diffRoutes returns what to withdraw and what to announce, in order. A route that is now for other
// routers, or has other attributes, is only announced: the UPDATE replaces the old route without a gap
// (RFC 4271 §3.1).
func diffRoutes(have, want Routes) (withdraw, announce []Route) {
	for r, is := range sortedset.Differences(have, want, compareRoutes) {
		last := len(withdraw) - 1
		switch {
		case !is:
			withdraw = append(withdraw, r)
		case is && last >= 0 && withdraw[last].Prefix == r.Prefix:
			withdraw = withdraw[:last]
			fallthrough
		case is:
			announce = append(announce, r)
		}
	}
	return withdraw, announce
}

// An announcement is the prefixes of routes that at least one router receives, or will once its session
// is up: only then is it known whether a router over IPv6 accepts IPv4.
type announcement struct {
	routes   Routes
	sessions []Session
	prefixes sortedset.Set[netip.Prefix]
}

// next returns the announcement of other routes or sessions. With the same sessions, it looks only at
// the routes that differ. Equal prefixes remain the same set.
func (a announcement) next(routes Routes, sessions []Session) announcement {
	was := a
	if !slices.Equal(a.sessions, sessions) {
		was = announcement{}
	}
	gone, came := sortedset.Changes(was.routes, routes, compareRoutes)
	sent := sentBy(sessions, came)
	changed := sortedset.UnionFunc(gone, came, compareRoutes)
	prefixes := make([]netip.Prefix, len(changed))
	for i, r := range changed {
		prefixes[i] = r.Prefix
	}
	now := sortedset.PatchSet(was.prefixes, prefixes, sortedset.ComparePrefixes, sortedset.Equal,
		func(i int) (netip.Prefix, bool) {
			_, is := slices.BinarySearchFunc(sent, changed[i], compareRoutes)
			return prefixes[i], is
		})
	return announcement{routes, sessions, sortedset.KeepSet(a.prefixes, now, sortedset.ComparePrefixes)}
}

// sentBy returns the routes that at least one of the sessions sends.
func sentBy(sessions []Session, routes []Route) (sent []Route) {
	type kind struct {
		peers Peers
		is4   bool
	}
	is := map[kind]bool{}
	for _, r := range routes {
		k := kind{r.Peers, r.Prefix.Addr().Is4()}
		sends, known := is[k]
		if !known {
			sends = slices.ContainsFunc(sessions,
				func(s Session) bool { return k.peers.Has(s.Name) && s.carries(k.is4) })
			is[k] = sends
		}
		if sends {
			sent = append(sent, r)
		}
	}
	return sent
}
