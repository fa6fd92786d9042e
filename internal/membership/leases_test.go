package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/internal/bubble"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership/gossip"
)

// Who is there, by what is heard and by renewals, in seconds: the death is at 100.
func TestMembersOf(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	for _, tt := range []struct {
		state   gossip.State
		renewal int // 0: none was seen
		now     int
		want    string
	}{
		{gossip.Alive, 0, 200, "alive"},
		{gossip.Alive, 1, 200, "alive"},
		{gossip.Left, 199, 200, "left"}, // its speaker has said so itself
		{gossip.Dead, 0, 100, "dead"},
		{gossip.Dead, 99, 100, "dead"},  // from before
		{gossip.Dead, 100, 101, "dead"}, // at the same time: not after
		{gossip.Dead, 101, 101, "lease"},
		{gossip.Dead, 101, 115, "lease"},
		{gossip.Dead, 101, 116, "dead"}, // three intervals later
		{gossip.Dead, 115, 116, "lease"},
	} {
		v := &gossip.View{Members: []gossip.Member{{Node: "n2", State: tt.state, Since: at(100)}}}
		for _, absent := range []bool{false, true} {
			sights := map[string]sight{}
			if tt.renewal > 0 || absent {
				sights["n2"] = sight{absent: absent}
			}
			if tt.renewal > 0 {
				sights["n2"] = sight{renewed: at(tt.renewal), absent: absent}
			}
			m, _ := membersOf(v, sights, 15*time.Second, at(tt.now)).Find("n2")
			if got := m.State(); got != tt.want || !m.Since.Equal(at(100)) || m.Absent != (absent && tt.want == "dead") {
				t.Errorf("%+v, absent %v: %s, %+v", tt, absent, got, m)
			}
		}
	}
	if got := membersOf(&gossip.View{}, nil, time.Second, at(0)); got != nil {
		t.Errorf("nobody: %+v", got)
	}
}

// A registry is an API server that has Leases, and may be away.
type registry struct {
	mu       sync.Mutex
	away     bool
	refusal  error
	renewals map[string]int
	says     map[string]bulletin
	watchers map[string]chan bulletin
	reads    map[string]int
}

func newRegistry() *registry {
	return &registry{renewals: map[string]int{}, says: map[string]bulletin{}, watchers: map[string]chan bulletin{}, reads: map[string]int{}}
}

var errAway = errors.New("connection refused")

func (r *registry) renew(_ context.Context, node string, _ types.UID, _ time.Duration, says bulletin) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away {
		return errAway
	}
	if r.refusal != nil {
		return r.refusal
	}
	r.renewals[node]++
	says.renewal = fmt.Sprint(r.renewals[node])
	r.says[node] = says
	if c := r.watchers[node]; c != nil {
		c <- says
	}
	return nil
}

func (r *registry) watch(ctx context.Context, node string, seen func(bulletin)) error {
	c := make(chan bulletin, 100)
	r.mu.Lock()
	if r.away {
		r.mu.Unlock()
		return errAway
	}
	r.reads[node]++
	r.watchers[node] = c
	now := r.says[node]
	r.mu.Unlock()
	if now.renewal != "" { // as a watch of what is not there, which begins with nothing
		seen(now)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-c:
			if b.renewal == "" {
				return errAway
			}
			seen(b)
		}
	}
}

// off takes the API server away, or brings it back.
func (r *registry) off(off bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = off
	for n, c := range r.watchers {
		if off {
			c <- bulletin{}
			delete(r.watchers, n)
		}
	}
}

// A node that is not heard of and renews its Lease is alive within an interval, and is
// until it has not for three. What its Lease says when it dies does not count.
func TestLeaseShowsLife(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const interval = 5 * time.Second
		api, log := newRegistry(), slog.New(slog.DiscardHandler)
		l := newLeases("n1", nil, interval, log)
		l.leaser = api
		defer l.close()
		other := newLeases("n2", nil, interval, log)
		other.leaser = api
		other.own("uid-n2")
		ctx, die := context.WithCancel(t.Context())
		go other.run(ctx)
		<-time.After(time.Minute)
		if api.reads["n2"] != 0 {
			t.Error("a Lease is watched of a node that is heard of")
		}

		died := time.Now()
		view := &gossip.View{Members: []gossip.Member{{Node: "n1"}, {Node: "n2", State: gossip.Dead, Since: died}}}
		state := func() string {
			m, _ := membersOf(view, l.follow(missingIn(view, &cluster.Snapshot{}, "n1")), l.patience(), time.Now()).Find("n2")
			return m.State()
		}
		becomes := func(want string, within time.Duration) time.Duration {
			t.Helper()
			began := time.Now()
			for state() != want {
				select {
				case <-l.changed:
				case <-time.After(within - time.Since(began)):
					t.Fatalf("it is %s for %s, want %s", state(), within, want)
				}
			}
			return time.Since(began)
		}
		if got := state(); got != "dead" {
			t.Errorf("it is %s at once", got)
		}
		becomes("lease", interval+time.Second)
		// An API server that goes away for a moment changes nothing.
		api.off(true)
		<-time.After(2 * time.Second)
		api.off(false)
		<-time.After(time.Minute)
		if got := state(); got != "lease" {
			t.Errorf("after an outage it is %s", got)
		}
		die()
		if took := becomes("dead", 4*interval); took < interval {
			t.Errorf("after %s it was dead", took)
		}
		view = &gossip.View{Members: []gossip.Member{{Node: "n1"}, {Node: "n2", Since: time.Now()}}}
		if got := state(); got != "alive" || len(l.watched) != 0 {
			t.Errorf("it is %s, and %d are watched", got, len(l.watched))
		}
		<-time.After(time.Minute)
	})
}

// A node whose Lease is not renewed either is absent, if the API server says so while it
// takes what this node says; not before a renewal is overdue, and no longer than until
// one is seen. An API server that is away, or takes nobody's, shows nothing.
func TestLeaseShowsAbsence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const interval = 5 * time.Second
		api := newRegistry()
		run := func(node string) (l *leases, stop context.CancelFunc) {
			l = newLeases(node, nil, interval, slog.New(slog.DiscardHandler))
			l.leaser = api
			l.own("uid-" + types.UID(node))
			ctx, stop := context.WithCancel(t.Context())
			go l.run(ctx)
			return l, stop
		}
		l, stop := run("n1")
		defer stop()
		_, die := run("n2")
		<-time.After(time.Minute)
		dead := []string{"n2", "n3"} // there never was a Lease of n3
		shows := func(within time.Duration, want string) time.Duration {
			t.Helper()
			began, late := time.Now(), time.After(within)
			for {
				sights := l.follow(dead)
				if got := fmt.Sprintf("%v %v", sights["n2"].absent, sights["n3"].absent); got == want {
					return time.Since(began)
				}
				select {
				case <-l.changed:
				case <-late:
					t.Fatalf("%s is not shown within %s: %+v", want, within, sights)
				}
			}
		}
		stays := func(d time.Duration, want string) {
			t.Helper()
			for range 10 {
				<-time.After(d / 10)
				shows(0, want)
			}
		}
		l.follow(dead)
		stays(time.Minute, "false false") // it renews its Lease
		die()
		bubble.Wait()
		// Renewals of the two may be at the same instant, and any of them the first.
		if took := shows(3*interval+time.Second, "true false"); took < interval {
			t.Errorf("it is absent %s after it died", took)
		}
		api.off(true)
		stays(time.Minute, "true false")
		api.off(false)
		_, die = run("n2")
		shows(2*interval, "false false")
		stays(time.Minute, "false false")
		// The API server goes away together with the node: it may be us who are cut off.
		die()
		api.off(true)
		stays(time.Minute, "false false")
		api.off(false)
		shows(5*interval, "true false")
		// It is back, and the API server takes no more renewals.
		_, die = run("n2")
		defer die()
		shows(2*interval, "false false")
		api.mu.Lock()
		api.refusal = apierrors.NewInternalError(errors.New("disk full"))
		api.mu.Unlock()
		stays(time.Minute, "false false")
	})
}

// Without an API server nobody lives by his Lease, and no trouble is made of it; one that
// refuses is said.
func TestLeaseTrouble(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLeases("n1", nil, time.Second, slog.New(slog.DiscardHandler))
		if l.follow([]string{"n2"}) != nil {
			t.Error("without an API server a Lease is followed")
		}
		l.run(t.Context()) // returns
		api := newRegistry()
		l.leaser = api
		l.own("uid")
		ctx, cancel := context.WithCancel(t.Context())
		go l.run(ctx)
		bubble.Wait()
		if got := l.problem(); got != "" {
			t.Errorf("problem %q", got)
		}
		api.off(true)
		<-time.After(2 * time.Second)
		if got := l.problem(); got != "" {
			t.Errorf("an API server that is away: %q", got)
		}
		api.off(false)
		api.mu.Lock()
		api.refusal = apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "x", errors.New("no role"))
		api.mu.Unlock()
		<-time.After(2 * time.Second)
		if got := l.problem(); !strings.Contains(got, "the Lease of this node is not renewed") || !strings.Contains(got, "no role") {
			t.Errorf("an API server that refuses the Lease: %q", got)
		}
		cancel()
		bubble.Wait()
	})
}

// No more Leases are watched than a few.
func TestLeaseLimit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newRegistry()
		l := newLeases("n1", nil, time.Second, slog.New(slog.DiscardHandler))
		l.leaser = api
		var dead []string
		for i := range 100 {
			dead = append(dead, fmt.Sprintf("n%d", i))
		}
		l.follow(dead)
		bubble.Wait()
		if len(api.reads) != maxLeases {
			t.Errorf("%d Leases are watched", len(api.reads))
		}
		l.close()
		bubble.Wait()
	})
}

// Who lives by a Lease has the interfaces that it names, as far as it says something of
// them; who was never heard of lives by it, too.
func TestMembersByLease(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	one, _ := EncodeInterfaces([]Interface{{Name: "eth0"}})
	none, _ := EncodeInterfaces(nil)
	v := &gossip.View{Members: []gossip.Member{{Node: "n1"}, {Node: "n3", State: gossip.Dead, Since: at(100), Meta: one}}}
	for name, tt := range map[string]struct {
		seen map[string]sight
		want string
	}{
		"nothing is seen":         {nil, "n1 alive 0, n3 dead 1"},
		"another release's":       {map[string]sight{"n3": {renewed: at(110)}}, "n1 alive 0, n3 lease 1"},
		"it has lost them":        {map[string]sight{"n3": {renewed: at(110), says: bulletin{interfaces: none}}}, "n1 alive 0, n3 lease 0"},
		"lost, and it is dead":    {map[string]sight{"n3": {renewed: at(90), says: bulletin{interfaces: none}}}, "n1 alive 0, n3 dead 1"},
		"never heard of":          {map[string]sight{"n2": {renewed: at(110), since: at(50), says: bulletin{interfaces: one}}}, "n1 alive 0, n2 lease 1, n3 dead 1"},
		"never heard of, no more": {map[string]sight{"n2": {renewed: at(90), says: bulletin{interfaces: one}}}, "n1 alive 0, n3 dead 1"},
		"not seen to be renewed":  {map[string]sight{"n2": {since: at(50), says: bulletin{interfaces: one}}}, "n1 alive 0, n3 dead 1"},
	} {
		var got []string
		for _, m := range membersOf(v, tt.seen, 15*time.Second, at(111)).Nodes {
			got = append(got, fmt.Sprintf("%s %s %d", m.Node, m.State(), len(m.Interfaces)))
		}
		if s := strings.Join(got, ", "); s != tt.want {
			t.Errorf("%s: %s, want %s", name, s, tt.want)
		}
	}
}

// Nodes that were never heard of are missed where somebody has to answer for addresses,
// unless they answer for none.
func TestMissing(t *testing.T) {
	v := &gossip.View{Members: []gossip.Member{{Node: "n1"}, {Node: "n2", State: gossip.Left}, {Node: "n3", State: gossip.Dead}, {Node: "n4"}}}
	snap := &cluster.Snapshot{Nodes: []*cluster.Node{{Name: "n0"}, {Name: "n1"}, {Name: "n2"}, {Name: "n3"}, {Name: "n4"}, {Name: "n5", Excluded: true}}}
	if got := fmt.Sprint(missingIn(v, snap, "n1")); got != "[n3]" {
		t.Errorf("without L2: %s", got)
	}
	snap.L2Advertisements = []*cluster.L2Advertisement{{Name: "any"}}
	if got := fmt.Sprint(missingIn(v, snap, "n1")); got != "[n3 n0]" {
		t.Errorf("with L2: %s", got)
	}
	if got := missingIn(&gossip.View{}, snap, "n1"); got != nil {
		t.Errorf("while this node does not listen: %v", got)
	}
}

// That a node has stopped to answer for something is read of its Lease at once, and told
// once; also by who begins to watch it then.
func TestLeaseTellsOfReleases(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api, log := newRegistry(), slog.New(slog.DiscardHandler)
		l, other := newLeases("n1", nil, 5*time.Second, log), newLeases("n2", nil, 5*time.Second, log)
		l.leaser, other.leaser = api, api
		defer l.close()
		other.own("uid-n2")
		ctx, cancel := context.WithCancel(t.Context())
		go other.run(ctx)
		l.follow([]string{"n2"})
		<-time.After(time.Minute)
		if l.resignations() {
			t.Error("nothing was released")
		}
		for range 2 {
			other.release()
			<-time.After(2 * newsPause)
			if !l.resignations() || l.resignations() {
				t.Error("want it told once")
			}
		}
		l.follow(nil)
		l.follow([]string{"n2"})
		bubble.Wait()
		if !l.resignations() {
			t.Error("what was released before the Lease was watched is not told")
		}
		cancel()
		bubble.Wait()
	})
}
