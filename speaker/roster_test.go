package speaker

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/nstest"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/plantest"
	"github.com/fanfare-lb/fanfare/l2"
)

// Two speakers hear of each other, of each other's interfaces, and each other's words.
func TestRoster(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(path, []byte("one-key-for-all-who-belong-here"), 0o600); err != nil {
			t.Fatal(err)
		}
		snap := plantest.Snapshot(t, []byte(strings.Replace(plantest.Advertised, "10.0.0.11", "127.0.0.2", 1)+`---
apiVersion: fanfare.io/v1alpha1
kind: L2Advertisement
metadata: {name: any}
spec: {}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
status: {addresses: [{type: InternalIP, address: 127.0.0.3}]}
`))
		words := make(chan string, 10)
		rosters := map[string]*roster{}
		for _, name := range []string{"n1", "n2"} {
			r := newRoster(Options{Config: plan.Config{Node: name}, MembersKeyFile: path, MembersPort: 7946, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()})
			r.begin(t.Context(), func(node string, b []byte) error {
				words <- fmt.Sprintf("%s hears %s: %s", name, node, b)
				return nil
			})
			t.Cleanup(r.close)
			rosters[name] = r
		}
		await := func(name, what string, is func(*membership.Members) bool) {
			t.Helper()
			r, deadline := rosters[name], time.After(time.Minute)
			for m := r.now(snap); !is(m); m = r.now(snap) {
				select {
				case <-r.changed():
				case <-deadline:
					t.Fatalf("%s never sees %s; it sees %+v", name, what, m)
				}
			}
		}
		both := func(m *membership.Members) bool {
			return m != nil && len(m.Nodes) == 2 && m.Nodes[0].Alive && m.Nodes[1].Alive
		}
		rosters["n2"].now(snap) // it begins
		await("n1", "both", both)
		await("n2", "both", both)
		lan, pod := netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("10.244.0.0/24")
		var of *reach
		offer := of.next(snap, []l2.Interface{{Name: "eth0", MAC: l2.MAC{2}, Prefixes: []netip.Prefix{lan}}, {Name: "cni0", Prefixes: []netip.Prefix{pod}}}, true)
		rosters["n1"].tell(offer, true)
		await("n2", "the other's interface", func(m *membership.Members) bool {
			n1, _ := m.Find("n1")
			return len(n1.Interfaces) == 1 && n1.Interfaces[0].Name == "eth0" && slices.Equal(n1.Interfaces[0].Prefixes, []netip.Prefix{lan}) && n1.Interfaces[0].MAC.String() == "02:00:00:00:00:00" && n1.Returning
		})
		rosters["n1"].tell(offer, false)
		await("n2", "the other to be steady", func(m *membership.Members) bool {
			n1, _ := m.Find("n1")
			return len(n1.Interfaces) == 1 && !n1.Returning
		})
		rosters["n1"].say([]byte("hello"))
		select {
		case got := <-words:
			if got != "n2 hears n1: hello" {
				t.Error(got)
			}
		case <-time.After(time.Minute):
			t.Error("nobody hears a word")
		}
		rosters["n1"].whisper("n2", []byte("and to you"))
		rosters["n1"].whisper("n3", []byte("who is no member"))
		select {
		case got := <-words:
			if got != "n2 hears n1: and to you" {
				t.Error(got)
			}
		case <-time.After(time.Minute):
			t.Error("n2 does not hear what is said to it")
		}
		d := plan.Decide(plan.Config{Node: "n2", Members: rosters["n2"].now(snap)}, snap)
		if st := rosters["n2"].status(d.View); st.Summary() != "2/2" || len(st.Problems) > 0 {
			t.Errorf("status %+v", st)
		}
		rosters["n1"].leave()
		await("n2", "the farewell", func(m *membership.Members) bool {
			n1, _ := m.Find("n1")
			return n1.Left && !n1.Alive
		})
		d = plan.Decide(plan.Config{Node: "n2", Members: rosters["n2"].now(snap)}, snap)
		if st := rosters["n2"].status(d.View); st.Summary() != "1/2" || len(st.LeftOut) > 0 {
			t.Errorf("status %+v", st)
		}
	})
}

// Without a key there is no roster, and all that is asked of it is nothing.
func TestNoRoster(t *testing.T) {
	r := newRoster(Options{})
	r.begin(t.Context(), nil)
	defer r.close()
	r.tell(nil, false)
	r.say(nil)
	r.whisper("n2", nil)
	r.leave()
	if r != nil || r.now(&cluster.Snapshot{}) != nil || r.changed() != nil || r.renewed() != nil || r.status(nil) != nil || r.status(nil).Summary() != "" {
		t.Error("there is a roster")
	}
}

// What is left out, and what is kept though it is silent, is said.
func TestMembersStatus(t *testing.T) {
	r := newRoster(Options{Config: plan.Config{Node: "n1"}, MembersKeyFile: "none", Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()})
	for states, want := range map[string]string{
		"aad":  "2/3 [n3] []",
		"aald": "2/4 [n4] []",
		"ad":   "1/2 [] [n2 of 2 nodes are not heard of: half or more, so it may be this one that is cut off; their endpoints are used as before]",
	} {
		s := r.status(plan.Decide(plan.Config{Node: "n1", Members: plantest.Members(states)}, &cluster.Snapshot{}).View)
		if got := fmt.Sprint(s.Summary(), " ", s.LeftOut, " ", s.Problems); got != want {
			t.Errorf("%s: %s, want %s", states, got, want)
		}
	}
	far := plantest.Members("aaa")
	far.Nodes[2].ByLease, far.Nodes[2].Since = true, time.Now().Add(-time.Minute)
	r.gossip.Port = 7946
	s := r.status(plan.Decide(plan.Config{Node: "n1", Members: far}, &cluster.Snapshot{}).View)
	if got := fmt.Sprint(s.Summary(), s.Problems); got != "3/3[nodes are not heard of, and live by their Leases: n3; is port 7946 open between nodes, UDP and TCP?]" {
		t.Error(got)
	}
	r.unfit.Store(3)
	if s := r.status(nil); len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "3 interfaces of this node are unknown to the others") {
		t.Errorf("status %+v", s)
	}
}
