package membership_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// Without a key file there is no Tracker, and the methods of a nil one do nothing.
func TestNoKeyFile(t *testing.T) {
	r := membership.New(membership.Options{})
	r.Start(t.Context(), nil)
	defer r.Close()
	r.SetMeta(nil, false)
	r.Broadcast(nil, false)
	r.Send("n2", nil)
	r.Leave()
	if r != nil || r.Members(&cluster.Snapshot{}) != nil || r.Changed() != nil || r.Renewed() != nil ||
		r.Status(nil) != nil || r.Status(nil).Summary() != "" {
		t.Error("there is a Tracker")
	}
}

// The status names nodes whose endpoints are left out, and why those of dead nodes are kept.
func TestMembersStatus(t *testing.T) {
	r := membership.New(membership.Options{
		Node: "n1", KeyFile: "none", Port: 7874, Log: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry(),
	})
	for states, want := range map[string]string{
		"aad":  "2/3 [n3] []",
		"aald": "2/4 [n4] []",
		"ad": "1/2 [] [n2 of 2 nodes do not respond: half or more, so this node itself may be cut off; their " +
			"endpoints are used as before]",
	} {
		s := r.Status(plantest.Members(states))
		if got := fmt.Sprint(s.Summary(), " ", s.LeftOut, " ", s.Problems); got != want {
			t.Errorf("%s: %s, want %s", states, got, want)
		}
	}
	far := plantest.Members("aaa")
	far.Nodes[2].ByLease, far.Nodes[2].Since = true, time.Now().Add(-time.Minute)
	s := r.Status(far)
	if got := fmt.Sprint(s.Summary(), s.Problems); got !=
		"3/3[gossip does not reach nodes n3, which renew their Leases; is port 7874 open between nodes, UDP and TCP?]" {
		t.Error(got)
	}
	none, _ := membership.EncodeInterfaces(nil)
	r.SetMeta(&membership.NodeMeta{Encoded: none, Omitted: 3}, false)
	if s := r.Status(nil); len(s.Problems) != 1 ||
		!strings.Contains(s.Problems[0], "3 interfaces of this node are unknown to the other nodes") {
		t.Errorf("status %+v", s)
	}
}
