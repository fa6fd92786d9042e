package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// claimAnnounce keeps spec.announce of AddressClaims equal to that of their pools. When a pool is
// deleted or loses addresses, speakers continue to announce assigned addresses as their claims say.
type claimAnnounce struct {
	// claims and pools are the last ones for which nothing was left to write.
	claims cluster.Claims
	pools  []*cluster.Pool
}

// reportAnnounce writes the differences, until the time is over. It compares all claims with pools
// only if pools have changed, and else new claims.
func (c *controller) reportAnnounce(ctx context.Context, snap *cluster.Snapshot,
	until time.Time) (left bool, errs []error) {
	done := &c.announce
	var claims []*cluster.Claim
	if slices.Equal(done.pools, snap.Pools) {
		_, claims = done.claims.Changes(snap.Claims)
	} else {
		claims = snap.Claims.Slice()
	}
	list := staleAnnounce(snap.Pools, claims)
	left, errs = c.each(ctx, until, len(list), func(i int) error {
		err := stale(c.writer.patchClaim(ctx, list[i].claim, map[string]any{"announce": list[i].announce}))
		c.metrics.wrote("announce", err)
		if err != nil {
			return fmt.Errorf("spec.announce of AddressClaim %s: %w", list[i].claim.Name(), err)
		}
		return nil
	})
	if len(list) == 0 {
		done.claims, done.pools = snap.Claims, snap.Pools
	}
	return left, errs
}

// An announceChange is a claim with the wanted value of its spec.announce.
type announceChange struct {
	claim    *cluster.Claim
	announce cluster.Announce
}

// staleAnnounce returns the claims that differ from their pool, by address. If the pool has lost
// the address, its claim stays as it is.
func staleAnnounce(pools []*cluster.Pool, claims []*cluster.Claim) (list []announceChange) {
	named := make(map[string]*cluster.Pool, len(pools))
	for _, p := range pools {
		named[p.Name] = p
	}
	for _, c := range claims {
		if p := named[c.Pool]; p != nil && p.Announce != c.Announce && p.Contains(c.Addr) {
			list = append(list, announceChange{c, p.Announce})
		}
	}
	return list
}
