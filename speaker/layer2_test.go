package speaker

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/redirect"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/speaker/rundir"
)

// Held addresses of the previous speaker linger for the rest of their time, and are not
// probed. Addresses that the kernel no longer has do not linger.
func TestL2StateAfterRestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		held, left, lost := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"),
			netip.MustParseAddr("192.0.2.3")
		dir := t.TempDir()
		path := newL2Path(nil, time.Minute)
		path.announcedAddrs = sortedset.AddrSet(held, lost)
		path.lingering = lingeringSet{{addr: left, until: time.Now().Add(20 * time.Second)}}
		before := rundir.New(dir)
		handover := newHandoverState("n1", nil)
		redirected := []proxy.Redirect{{VIP: held, Interface: "eth0", Via: netip.MustParseAddr("192.0.2.12")}}
		near, far := []cluster.Interface{{Name: "eth0", MAC: l2.MAC{2},
			Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.12/32")}}}, []cluster.Interface{{Name: "eth1"}}
		handover.restoreOwners(redirect.Saved{
			Owners:     map[netip.Addr][]string{held: {"n1", "n2"}, left: {"n2", "n1"}, lost: {"n2", "n3"}},
			Interfaces: map[string][]cluster.Interface{"n2": near, "n3": far},
		})
		if err := errors.Join(before.SaveAnswered(path.announcedAddrs,
			(&layer2{path: path, handover: handover}).savedAddresses),
			before.SaveOwners(handover.history, redirected)); err != nil {
			t.Fatal(err)
		}
		o := Options{
			Config: plan.Config{Node: "n1"}, LingerL2: time.Minute, Log: slog.New(slog.DiscardHandler),
			Registry: prometheus.NewRegistry(),
		}
		l := newLayer2(o, []netip.Addr{held, left}, rundir.New(dir))
		for addr, want := range map[netip.Addr]time.Duration{held: time.Minute, left: 20 * time.Second, lost: 0} {
			var got time.Duration
			if lingering := l.path.lingering.find(addr); lingering != nil {
				got = time.Until(lingering.until)
			}
			if got != want {
				t.Errorf("%s is forwarded for %s more, want %s", addr, got, want)
			}
		}
		if got, want := l.handover.history.Owners(sortedset.AddrSet()),
			(map[netip.Addr][]string{held: {"n1", "n2"}, left: {"n2", "n1"}}); !reflect.DeepEqual(got, want) {
			t.Errorf("owners are %v; want %v", got, want)
		}
		if got, want := l.handover.history.Saved(nil).Interfaces,
			(map[string][]cluster.Interface{"n1": nil, "n2": near}); !reflect.DeepEqual(got, want) {
			t.Errorf("the interfaces are %v; want %v", got, want)
		}
		// Its redirects stay until the interfaces are known.
		l.handover.pause(time.Now().Add(time.Second))
		if got := l.nextRedirects(&plan.Desired{Inputs: &plan.Inputs{}}, time.Now()).Rules; !reflect.DeepEqual(got,
			redirected) {
			t.Errorf("redirects: %v; want %v", got, redirected)
		}
		if got := l.nextRedirects(&plan.Desired{Inputs: &plan.Inputs{}},
			time.Now().Add(time.Second)).Rules; len(got) > 0 {
			t.Errorf("redirects without an interface: %v", got)
		}
		fresh := netip.MustParseAddr("192.0.2.4")
		for _, a := range l.handover.admit([]l2.Address{{Addr: held}, {Addr: left}, {Addr: lost}, {Addr: fresh}},
			time.Now()) {
			if a.Probe != (a.Addr == fresh) {
				t.Errorf("%s: probe %v", a.Addr, a.Probe)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "answered.json"), []byte("["), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := rundir.New(dir).LoadAnswered(); err == nil {
			t.Error("a truncated file is accepted")
		}
		o.Registry = prometheus.NewRegistry()
		if l := newLayer2(o, []netip.Addr{held}, rundir.New(dir)); len(l.path.lingering) > 0 {
			t.Errorf("a truncated file has %v", l.path.lingering)
		}
		if err := rundir.Cleanup(dir); err != nil {
			t.Fatal(err)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
			t.Errorf("left behind: %v, %v", list, err)
		}
	})
}

// deliverState delivers the full state of a node.
func deliverState(t *testing.T, handover *handoverState, node string, held ...netip.Addr) {
	t.Helper()
	for _, m := range (message{instance: 7, sequence: uint64(time.Now().UnixNano()), held: held}).encode() {
		if err := handover.receive(node, m); err != nil {
			t.Fatal(err)
		}
	}
}

// No address is admitted until all nodes have been seen and have sent their state, for a
// bounded time.
func TestDiscoveryAtStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		nodes := []*cluster.Node{{Name: "n1"}, {Name: "n2"}}
		both := &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2", Alive: true}}}
		begin := func(clustered bool) *layer2 {
			return &layer2{
				handover: newHandoverState("n1", nil), clustered: clustered, broadcast: func([]byte) {},
				send: func(string, []byte) {},
			}
		}
		for name, tt := range map[string]struct {
			clustered bool
			members   *membership.Members
			after     time.Duration
			ready     bool
		}{
			"no membership":         {false, nil, 0, true},
			"no node seen":          {true, nil, 0, false},
			"no node seen for long": {true, nil, discoveryTime, true},
			"one node missing": {true, &membership.Members{
				Nodes: []membership.Member{{Node: "n1", Alive: true}}}, 0, false},
			"one node missing for long": {true, &membership.Members{
				Nodes: []membership.Member{{Node: "n1", Alive: true}}}, discoveryTime, true},
			"all seen":            {true, both, 0, false},
			"all seen for long":   {true, both, discoveryTime, true},
			"all states received": {true, both, 0, true},
			"one known to be dead": {true, &membership.Members{
				Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2"}}}, 0, true},
		} {
			l := begin(tt.clustered)
			if name == "all states received" {
				deliverState(t, l.handover, "n2")
			}
			l.discover(tt.members, nodes, time.Now())
			time.Sleep(tt.after)
			l.discover(tt.members, nodes, time.Now())
			if l.ready(time.Now()) != tt.ready {
				t.Errorf("%s: ready %v", name, !tt.ready)
			}
			if admitted := l.handover.admit([]l2.Address{{Addr: netip.MustParseAddr("192.0.2.1")}},
				time.Now()); (len(admitted) == 1) != tt.ready {
				t.Errorf("%s: admitted %v", name, admitted)
			}
		}
	})
}

// A node that misses others and has its interface back admits nothing until all others have
// sent their state, for a bounded time. It keeps what it has.
func TestDiscoveryAfterLinkLoss(t *testing.T) {
	snap := plantest.Snapshot(t, []byte(plantest.Advertised+linkedWorld))
	bubble.Test(t, func(t *testing.T) {
		nodes := []*cluster.Node{{Name: "n1"}, {Name: "n2"}}
		eth0 := l2.Interface{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
		pod := l2.Interface{Name: "veth1", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}}
		alone := &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2"}}}
		both := &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2", Alive: true}}}
		l := &layer2{
			handover: newHandoverState("n1", nil), clustered: true, broadcast: func([]byte) {},
			send: func(string, []byte) {},
		}
		step := func(what string, ready bool, m *membership.Members, all ...l2.Interface) {
			t.Helper()
			l.recordInterfaces(relevantInterfaces(snap, all), time.Now())
			l.discover(m, nodes, time.Now())
			if l.ready(time.Now()) != ready {
				t.Errorf("%s: ready %v", what, !ready)
			}
		}
		step("at first", false, both, eth0)
		deliverState(t, l.handover, "n2")
		step("the other has sent its state", true, both, eth0)
		time.Sleep(time.Minute)
		step("the other is dead", true, alone, eth0)
		step("a pod has come", true, alone, eth0, pod)
		step("the link is lost", true, alone, pod)
		step("it is back", false, alone, eth0, pod)
		time.Sleep(discoveryTime)
		step("for long", true, alone, eth0, pod)
		step("it is lost again", true, alone)
		step("and back", false, alone, eth0)
		step("the other is reachable", false, both, eth0)
		deliverState(t, l.handover, "n2")
		step("the other has sent its state", true, both, eth0)
		step("the link is lost with all nodes alive", true, both)
		step("it is back", false, both, eth0)
		deliverState(t, l.handover, "n2")
		step("and the other has sent its state", true, both, eth0)
		step("it is lost", true, both)
		step("and back", false, both, eth0)
		time.Sleep(discoveryTime)
		step("and the other sends nothing", true, both, eth0)

		// The owner of the addresses may be the last one to be heard again.
		third := func(alive bool) *membership.Members {
			return &membership.Members{Nodes: append(slices.Clone(both.Nodes),
				membership.Member{Node: "n3", Alive: alive})}
		}
		step("the link is lost once more", true, third(false))
		step("and back", false, third(false), eth0)
		deliverState(t, l.handover, "n2")
		step("one of two others has sent its state", false, third(false), eth0)
		step("the second one is reachable", false, third(true), eth0)
		deliverState(t, l.handover, "n3")
		step("and has sent its state", true, third(true), eth0)
		time.Sleep(time.Minute)
		step("the link is lost while a node is dead", true, third(false))
		step("and back", false, third(false), eth0)
		deliverState(t, l.handover, "n2")
		time.Sleep(discoveryTime)
		step("for long", true, third(false), eth0)
	})
}

// A query is repeated until the state arrives, since packets get lost.
func TestQueryIsRepeated(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		vip := netip.MustParseAddr("192.0.2.1")
		both := &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2", Alive: true}}}
		nodes := []*cluster.Node{{Name: "n1"}, {Name: "n2"}}
		n2 := newHandoverState("n2", nil)
		n2.reportChanges([]netip.Addr{vip})
		l := &layer2{handover: newHandoverState("n1", nil), clustered: true, broadcast: func([]byte) {}}
		lost := 2 // the first queries
		l.send = func(node string, message []byte) {
			s, err := parseMessage(message)
			if err != nil || node != "n2" {
				t.Errorf("%s receives %x", node, message)
			}
			if s.kind == queryMessage {
				lost--
			}
			if lost < 0 {
				if err := n2.receive("n1", message); err != nil {
					t.Error(err)
				}
			}
		}
		n2.send = func(node string, message []byte) {
			if err := l.handover.receive("n2", message); err != nil || node != "n1" {
				t.Errorf("%s: %v", node, err)
			}
		}
		began := time.Now()
		for l.discover(both, nodes, time.Now()); !l.ready(time.Now()); l.discover(both, nodes, time.Now()) {
			select {
			case <-l.handover.changed:
			case <-time.After(time.Until(l.next(time.Now()))):
			}
		}
		if took := time.Since(began); took != 2*queryInterval || !l.handover.othersHold(both) {
			t.Errorf("known after %s: %t", took, l.handover.othersHold(both))
		}
		l.discover(both, nodes, time.Now())
		if at := l.next(time.Now()); !at.IsZero() {
			t.Errorf("there is something to do after %s", time.Until(at))
		}
	})
}

// The reason of an address that is not announced yet over L2 says what it waits for.
func TestL2Reasons(t *testing.T) {
	vip := netip.MustParseAddr("192.0.2.1")
	meant := cluster.Reason{VIP: vip, Protocol: "l2", Code: cluster.ToAnnounce, Message: "to be announced on eth0"}
	for name, tt := range map[string]struct {
		reason  cluster.Reason
		p       passResult
		status  *l2.Status
		code    cluster.Code
		message string
	}{
		"held": {meant, passResult{programmed: true}, &l2.Status{Phase: l2.Held}, cluster.Announced,
			"announced on eth0"},
		"another's yet": {meant, passResult{programmed: true, waitsFor: map[netip.Addr]string{vip: "n2"}}, nil,
			cluster.WaitingForRelease, "waits for node n2 to stop"},
		"not forwarded": {meant, passResult{}, nil, cluster.WaitingForProxy, "the kernel does not forward it"},
		"no state received": {meant, passResult{programmed: true}, nil, cluster.WaitingForNodes,
			"whose state has not arrived"},
		"probing": {meant, passResult{programmed: true}, &l2.Status{Phase: l2.Probing},
			cluster.WaitingForProbe, "whether another host uses it"},
		"in use": {meant, passResult{programmed: true},
			&l2.Status{Phase: l2.Conflicting, Reason: "02:00:00:00:00:05 has it"}, cluster.AddressInUse,
			"02:00:00:00:00:05 has it"},
		"no interface": {meant, passResult{programmed: true},
			&l2.Status{Phase: l2.Waiting, Reason: "eth0 is down"}, cluster.NoInterface, "eth0 is down"},
		"given away": {cluster.Reason{
			VIP: vip, Protocol: "l2", Code: cluster.AnotherNode, Message: "not announced: node n2 answers for it",
		},
			passResult{l2Lingering: lingeringSet{{addr: vip, until: time.Unix(0, 0)}}}, nil, cluster.AnotherNode,
			"node n2 answers for it; forwarded until"},
	} {
		got := tt.p.observed(tt.reason, AddressStatus{Address: vip, L2: tt.status}, bgp.Status{})
		if got.Code != tt.code || !strings.Contains(got.Message, tt.message) {
			t.Errorf("%s: %s: %s, want %s: %s", name, got.Code, got.Message, tt.code, tt.message)
		}
	}
}

const linkedWorld = `---
apiVersion: fanfare.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec: {pools: [lan]}
`

// The Service has Events when a node answers for its address, and when another host uses
// it.
func TestL2Events(t *testing.T) {
	p := newEventTest(t, reported{})
	p.world(plantest.LocalService("web", "uid-web", "192.0.2.1", "n1"), linkedWorld)
	p.expectEvents("at the start")
	vip := netip.MustParseAddr("192.0.2.1")
	answers := func(phase l2.Phase, conflicts int) {
		s := l2.Status{Addr: vip, Phase: phase, Interfaces: []string{"eth0"}}
		if conflicts > 0 {
			s.Conflict = &l2.Conflict{MAC: l2.MAC{2, 0, 0, 0, 0, 5}, Interface: "eth0", Count: conflicts}
		}
		p.l2Statuses = []l2.Status{s}
	}
	answers(l2.Probing, 0)
	p.expectEvents("while the link is asked")
	answers(l2.Held, 0)
	p.expectEvents("it answers", "Normal Announced Service/web (uid-web): node n1 answers for 192.0.2.1 on eth0")
	answers(l2.Held, 1)
	p.expectEvents("another host uses it",
		"Warning AddressInUse Service/web (uid-web): node n1 finds 192.0.2.1 in use: 02:00:00:00:00:05 answers for "+
			"it on eth0: take the address from it, or out of the pool")
	answers(l2.Held, 2)
	p.expectEvents("and goes on to")
	answers(l2.Conflicting, 3)
	p.l2Statuses[0].Reason = "02:00:00:00:00:05 has it"
	p.expectEvents("it gives up", "Normal Withdrawn Service/web (uid-web): node n1 stopped answering for 192.0.2.1: "+
		"02:00:00:00:00:05 has it")
	answers(l2.Held, 0)
	p.expectEvents("it answers again", "Normal Announced Service/web (uid-web): node n1 answers for 192.0.2.1 on eth0")
	p.l2Statuses = nil
	p.world(linkedWorld)
	p.expectEvents("the Service is gone")
}

// The announcer learns for which addresses it should remember requests.
func TestL2AnnouncerPassesPools(t *testing.T) {
	pools := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	var got l2.State
	set := func(_ context.Context, s l2.State) ([]netip.Addr, error) { got = s; return nil, nil }
	a := &l2Announcer{set: set, handover: newHandoverState("n1", nil)}
	if _, err := a.Set(t.Context(), &plan.Desired{UsesL2: true, L2: l2.State{Pools: pools}},
		sortedset.PrefixSet()); err != nil || !slices.Equal(got.Pools, pools) {
		t.Errorf("pools %v: %v", got.Pools, err)
	}
}
