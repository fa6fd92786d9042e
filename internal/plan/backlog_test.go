package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plantest"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// addressByAddress returns a Decider that decides about one address at a time.
func addressByAddress(c Config) *Decider {
	d := NewDecider(c)
	d.Effort, d.backlog.part = 1, 1
	return d
}

// said returns what routers and neighbours receive by d: "router prefix", and "l2 address".
func (d *Desired) said() map[string]bool {
	all := map[string]bool{}
	for _, s := range d.BGP.Sessions {
		for r := range d.BGP.Routes.All() {
			if r.Peers.Has(s.Name) {
				all[s.Name+" "+r.Prefix.String()] = true
			}
		}
	}
	for a := range d.Answered.All() {
		all["l2 "+a.String()] = true
	}
	return all
}

// A Decider with an Effort, whatever happens before it has caught up, ends where Decide is. On the
// way it announces nothing to a router that was not to be announced to it by a snapshot since, and
// what is not Outdated is as Decide says.
func TestBacklogCatchesUp(t *testing.T) {
	parts := 0
	for seed := range plantest.Seeds(t) / 4 {
		c := Config{Node: "n1", HealthChecks: HealthChecksAll}
		w, decider := plantest.NewWorld(seed), addressByAddress(c)
		d := decider.Decide(w.Snapshot())
		allowed := d.said()
		for range 40 {
			for range w.IntN(3) {
				w.Step()
			}
			if w.IntN(2) == 0 {
				w.ChangeView()
			}
			snap := w.Snapshot()
			c.Members, c.Returning, c.Interfaces = w.Members, w.Returning, w.Interfaces
			if w.IntN(8) == 0 {
				c.Refused = refusedAtRandom(w, d.Proxy.VIPs)
			}
			decider.Config = c
			want := Decide(c, snap)
			for s := range want.said() {
				allowed[s] = true
			}
			for n := w.IntN(100); ; n-- {
				d = decider.Decide(snap)
				checkPart(t, fmt.Sprintf("seed %d", seed), d, want, allowed)
				if n == 0 && w.IntN(2) == 0 || len(d.Outdated) == 0 {
					break
				}
				parts++
			}
			if len(d.Outdated) == 0 {
				allowed = want.said()
				if got, want := d.String(), want.String(); got != want {
					t.Fatalf("seed %d: got\n%s\nwant\n%s", seed, got, want)
				}
			}
		}
	}
	if parts < 1000 {
		t.Errorf("only %d times was anything left", parts)
	}
}

func checkPart(t *testing.T, when string, d, want *Desired, allowed map[string]bool) {
	t.Helper()
	for s := range d.said() {
		if !allowed[s] {
			t.Fatalf("%s: %s is announced", when, s)
		}
	}
	for a := range d.Addresses.All() {
		is := want.Address(a.Addr)
		if sortedset.Has(d.Outdated, a.Addr) {
			continue
		}
		if is == nil || is.Announce != a.Announce || is.Owner != a.Owner || !is.VIP.Equal(a.VIP) || !slices.Equal(is.Routes, a.Routes) {
			t.Fatalf("%s: %s is not outdated, and is %+v, want %+v", when, a.Addr, a, is)
		}
	}
}

// The change of a Service comes before what waits, and what waits is decided although Services
// change all the time.
func TestBacklogTakesTurns(t *testing.T) {
	const n = 100
	d, snap := NewDecider(Config{Node: nodeName(0)}), many(n, cluster.AnnounceBGP)
	d.Effort, d.backlog.part = time.Nanosecond, 4
	d.Decide(snap)
	drained := *snap
	node(&drained, 0).Leaving = "drain"
	snap = &drained
	if got := d.Decide(snap); len(got.Outdated) != n-4 || !got.BGP.Shutdown {
		t.Fatalf("%d of %d are outdated", len(got.Outdated), n)
	}
	change := func(services int) {
		next := *snap
		for i := range services {
			changed := snap.Services.At(i)
			changed.Endpoints = new(*changed.Endpoints)
			next.Services = next.Services.With(changed)
		}
		snap = &next
	}
	assigned := snap.Assignments.Slice()
	wait := func(i int) bool { return sortedset.Has(d.last.Outdated, assigned[i].Addr) }
	d.backlog.from = assigned[0].Addr
	change(1)
	if d.Decide(snap); wait(0) || len(d.last.Outdated) != n-7 {
		t.Errorf("the change of a Service waits, or not with the others: %d wait", len(d.last.Outdated))
	}
	for pass := 0; slices.ContainsFunc(d.last.Outdated, assigned[n/2].Addr.Less); pass++ {
		change(n / 2) // by a tenant, all the time
		d.Decide(snap)
		if pass > n {
			t.Fatalf("%d addresses still wait", len(d.last.Outdated))
		}
	}
}
