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

	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/l2"
)

// Two speakers receive each other's interfaces and messages.
func TestMembership(t *testing.T) {
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
		trackers := map[string]*membership.Tracker{}
		for _, name := range []string{"n1", "n2"} {
			r := membership.New(membership.Options{
				Node: name, KeyFile: path, Port: 7874, Log: slog.New(slog.DiscardHandler),
				Registerer: prometheus.NewRegistry(),
			})
			r.Start(t.Context(), func(node string, b []byte) error {
				words <- fmt.Sprintf("%s receives from %s: %s", name, node, b)
				return nil
			})
			t.Cleanup(r.Close)
			trackers[name] = r
		}
		await := func(name, what string, is func(*membership.Members) bool) {
			t.Helper()
			r, deadline := trackers[name], time.After(time.Minute)
			for m := r.Members(snap); !is(m); m = r.Members(snap) {
				select {
				case <-r.Changed():
				case <-deadline:
					t.Fatalf("%s never sees %s; it sees %+v", name, what, m)
				}
			}
		}
		both := func(m *membership.Members) bool {
			return m != nil && len(m.Nodes) == 2 && m.Nodes[0].Alive && m.Nodes[1].Alive
		}
		trackers["n2"].Members(snap) // starts it
		await("n1", "both", both)
		await("n2", "both", both)
		lan, pod := netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("10.244.0.0/24")
		var of *interfaceOffer
		offer := of.next(snap, []l2.Interface{{Name: "eth0", MAC: l2.MAC{2}, Prefixes: []netip.Prefix{lan}},
			{Name: "cni0", Prefixes: []netip.Prefix{pod}}}, [2]bool{}, true)
		trackers["n1"].SetMeta(&offer.meta, true)
		await("n2", "the other's interface", func(m *membership.Members) bool {
			n1, _ := m.Find("n1")
			return len(n1.Interfaces) == 1 && n1.Interfaces[0].Name == "eth0" &&
				slices.Equal(n1.Interfaces[0].Prefixes, []netip.Prefix{lan}) &&
				n1.Interfaces[0].MAC.String() == "02:00:00:00:00:00" && n1.Returning
		})
		trackers["n1"].SetMeta(&offer.meta, false)
		await("n2", "the other to be steady", func(m *membership.Members) bool {
			n1, _ := m.Find("n1")
			return len(n1.Interfaces) == 1 && !n1.Returning
		})
		trackers["n1"].Broadcast([]byte("hello"), false)
		select {
		case got := <-words:
			if got != "n2 receives from n1: hello" {
				t.Error(got)
			}
		case <-time.After(time.Minute):
			t.Error("no message arrives")
		}
		trackers["n1"].Send("n2", []byte("and to you"))
		trackers["n1"].Send("n3", []byte("to a node that is not a member"))
		select {
		case got := <-words:
			if got != "n2 receives from n1: and to you" {
				t.Error(got)
			}
		case <-time.After(time.Minute):
			t.Error("n2 does not hear what is said to it")
		}
		d := plan.Decide(plan.Config{Node: "n2", Members: trackers["n2"].Members(snap)}, snap)
		if st := trackers["n2"].Status(d.Inputs.Members); st.Summary() != "2/2" || len(st.Problems) > 0 {
			t.Errorf("status %+v", st)
		}
		trackers["n1"].Leave()
		await("n2", "the departure", func(m *membership.Members) bool {
			n1, _ := m.Find("n1")
			return n1.Left && !n1.Alive
		})
		d = plan.Decide(plan.Config{Node: "n2", Members: trackers["n2"].Members(snap)}, snap)
		if st := trackers["n2"].Status(d.Inputs.Members); st.Summary() != "1/2" || len(st.LeftOut) > 0 {
			t.Errorf("status %+v", st)
		}
	})
}
