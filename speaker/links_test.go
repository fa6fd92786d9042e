package speaker

import (
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/bubble"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/plantest"
	"github.com/fanfare-lb/fanfare/l2"
)

// What a speaker answered for, the next one forwards for the rest of the linger time and
// does not probe; what is no longer in the kernel it cannot forward.
func TestLinksAreInherited(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		held, left, lost := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
		dir := t.TempDir()
		w := byL2(nil, time.Minute)
		w.have = []netip.Addr{held, lost}
		w.departed[left] = departure{until: time.Now().Add(20 * time.Second)}
		before := memory{dir: dir}
		holds := newHoldings("n1", nil, slog.New(slog.DiscardHandler))
		holds.remember(held, "n2")
		if err := before.keepAnswered(w, holds); err != nil {
			t.Fatal(err)
		}
		o := Options{Config: plan.Config{Node: "n1"}, LingerL2: time.Minute, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()}
		k := newLinks(o, []netip.Addr{held, left}, &memory{dir: dir})
		for addr, want := range map[netip.Addr]time.Duration{held: time.Minute, left: 20 * time.Second, lost: -time.Since(time.Time{})} {
			if got := time.Until(k.way.departed[addr].until); addr != lost && got != want || addr == lost && got > 0 {
				t.Errorf("%s is forwarded for %s more, want %s", addr, got, want)
			}
		}
		if got := k.holds.before([]netip.Addr{held, left}); len(got) != 1 || got[held] != "n2" {
			t.Errorf("before this node answered %v", got)
		}
		fresh := netip.MustParseAddr("192.0.2.4")
		for _, a := range k.holds.admit([]l2.Address{{Addr: held}, {Addr: left}, {Addr: lost}, {Addr: fresh}}, time.Now()) {
			if a.Probe != (a.Addr == fresh) {
				t.Errorf("%s: probe %v", a.Addr, a.Probe)
			}
		}
		if err := os.WriteFile(before.partingsPath(), []byte("["), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := (&memory{dir: dir}).partings(); err == nil {
			t.Error("half a file is understood")
		}
		o.Registry = prometheus.NewRegistry()
		if k := newLinks(o, []netip.Addr{held}, &memory{dir: dir}); len(k.way.departed) > 0 {
			t.Errorf("of half a file came %v", k.way.departed)
		}
		if err := Forget(dir); err != nil {
			t.Fatal(err)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
			t.Errorf("left behind: %v, %v", list, err)
		}
	})
}

// greet has the speaker of a node say that it answers for some addresses.
func greet(t *testing.T, h *holdings, node string, held ...netip.Addr) {
	t.Helper()
	for _, m := range (saying{boot: 7, count: uint64(time.Now().UnixNano()), held: held}).messages() {
		if err := h.hear(node, m); err != nil {
			t.Fatal(err)
		}
	}
}

// Nothing is taken until the other nodes have been heard of, and have said what they
// answer for, for a bounded time.
func TestLinksWaitForOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		nodes := []*cluster.Node{{Name: "n1"}, {Name: "n2"}}
		both := &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2", Alive: true}}}
		begin := func(sociable bool) *links {
			return &links{holds: newHoldings("n1", nil, slog.New(slog.DiscardHandler)), sociable: sociable, say: func([]byte) {}, tell: func(string, []byte) {}}
		}
		for name, tt := range map[string]struct {
			sociable bool
			members  *membership.Members
			after    time.Duration
			ready    bool
		}{
			"nobody to hear":          {false, nil, 0, true},
			"nobody heard":            {true, nil, 0, false},
			"nobody heard for long":   {true, nil, acquaintance, true},
			"one missing":             {true, &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}}}, 0, false},
			"one missing for long":    {true, &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}}}, acquaintance, true},
			"all heard":               {true, both, 0, false},
			"all heard for long":      {true, both, acquaintance, true},
			"all have spoken":         {true, both, 0, true},
			"one heard to be no more": {true, &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2"}}}, 0, true},
		} {
			k := begin(tt.sociable)
			if name == "all have spoken" {
				greet(t, k.holds, "n2")
			}
			k.meet(tt.members, nodes, k.say, time.Now())
			time.Sleep(tt.after)
			k.meet(tt.members, nodes, k.say, time.Now())
			if k.ready(time.Now()) != tt.ready {
				t.Errorf("%s: ready %v", name, !tt.ready)
			}
			if admitted := k.holds.admit([]l2.Address{{Addr: netip.MustParseAddr("192.0.2.1")}}, time.Now()); (len(admitted) == 1) != tt.ready {
				t.Errorf("%s: admitted %v", name, admitted)
			}
		}
	})
}

// A node that hears nobody and has its link back takes nothing until it has heard what
// somebody answers for, for a bounded time. What it has it keeps, and who is heard changes nothing.
func TestLinksWaitWhenOneIsBack(t *testing.T) {
	snap := plantest.Snapshot(t, []byte(plantest.Advertised+linkedWorld))
	bubble.Test(t, func(t *testing.T) {
		nodes := []*cluster.Node{{Name: "n1"}, {Name: "n2"}}
		eth0 := l2.Interface{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
		pod := l2.Interface{Name: "veth1", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}}
		alone := &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2"}}}
		both := &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2", Alive: true}}}
		k := &links{holds: newHoldings("n1", nil, slog.New(slog.DiscardHandler)), sociable: true, say: func([]byte) {}, tell: func(string, []byte) {}}
		step := func(what string, ready bool, m *membership.Members, all ...l2.Interface) {
			t.Helper()
			k.gain(relevant(snap, all), time.Now())
			k.meet(m, nodes, k.say, time.Now())
			if k.ready(time.Now()) != ready {
				t.Errorf("%s: ready %v", what, !ready)
			}
		}
		step("at first", false, both, eth0)
		greet(t, k.holds, "n2")
		step("the other has spoken", true, both, eth0)
		time.Sleep(time.Minute)
		step("the other is dead", true, alone, eth0)
		step("a pod has come", true, alone, eth0, pod)
		step("the link is lost", true, alone, pod)
		step("it is back", false, alone, eth0, pod)
		time.Sleep(acquaintance)
		step("for long", true, alone, eth0, pod)
		step("it is lost again", true, alone)
		step("and back", false, alone, eth0)
		step("the other is heard", false, both, eth0)
		greet(t, k.holds, "n2")
		step("the other has said what it answers for", true, both, eth0)
		step("with everybody there", true, both)
		step("it is back", false, both, eth0)
		greet(t, k.holds, "n2")
		step("and the other has said what it answers for", true, both, eth0)
		step("it is lost", true, both)
		step("and back", false, both, eth0)
		time.Sleep(acquaintance)
		step("and the other says nothing", true, both, eth0)
	})
}

// Who is heard and has not said what it answers for is asked until it has: packets get lost.
func TestLinksAsk(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		vip := netip.MustParseAddr("192.0.2.1")
		both := &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2", Alive: true}}}
		nodes := []*cluster.Node{{Name: "n1"}, {Name: "n2"}}
		n2 := newHoldings("n2", nil, slog.New(slog.DiscardHandler))
		n2.tell([]netip.Addr{vip})
		k := &links{holds: newHoldings("n1", nil, slog.New(slog.DiscardHandler)), sociable: true, say: func([]byte) {}}
		lost := 2 // so many questions are
		k.tell = func(node string, message []byte) {
			s, err := parseSaying(message)
			if err != nil || node != "n2" {
				t.Errorf("%s is told %x", node, message)
			}
			if s.asks {
				lost--
			}
			if lost < 0 {
				if err := n2.hear("n1", message); err != nil {
					t.Error(err)
				}
			}
		}
		n2.whisper = func(node string, message []byte) {
			if err := k.holds.hear("n2", message); err != nil || node != "n1" {
				t.Errorf("%s: %v", node, err)
			}
		}
		began := time.Now()
		for k.meet(both, nodes, k.say, time.Now()); !k.ready(time.Now()); k.meet(both, nodes, k.say, time.Now()) {
			select {
			case <-k.holds.changed:
			case <-time.After(time.Until(k.next(time.Now()))):
			}
		}
		if took := time.Since(began); took != 2*askInterval || !k.holds.others(both) {
			t.Errorf("known after %s: %t", took, k.holds.others(both))
		}
		k.meet(both, nodes, k.say, time.Now())
		if at := k.next(time.Now()); !at.IsZero() {
			t.Errorf("there is something to do after %s", time.Until(at))
		}
	})
}

// What is meant to be announced over L2 and is not says what it waits for.
func TestObservedLinks(t *testing.T) {
	vip := netip.MustParseAddr("192.0.2.1")
	meant := cluster.Reason{VIP: vip, Protocol: "l2", Code: cluster.Announced, Message: "announced on eth0"}
	for name, tt := range map[string]struct {
		reason cluster.Reason
		p      published
		status *l2.Status
		code   cluster.Code
		says   string
	}{
		"held":          {meant, published{programmed: true}, &l2.Status{Phase: l2.Held}, cluster.Announced, "announced on eth0"},
		"another's yet": {meant, published{programmed: true, waits: map[netip.Addr]string{vip: "n2"}}, nil, cluster.WaitingForRelease, "waits for node n2 to stop"},
		"not forwarded": {meant, published{}, nil, cluster.WaitingForProxy, "the kernel does not forward it"},
		"nobody known":  {meant, published{programmed: true}, nil, cluster.WaitingForNodes, "not heard of yet"},
		"probing":       {meant, published{programmed: true}, &l2.Status{Phase: l2.Probing}, cluster.WaitingForProbe, "whether somebody uses it"},
		"in use":        {meant, published{programmed: true}, &l2.Status{Phase: l2.Conflicting, Reason: "02:00:00:00:00:05 has it"}, cluster.AddressInUse, "02:00:00:00:00:05 has it"},
		"no interface":  {meant, published{programmed: true}, &l2.Status{Phase: l2.Waiting, Reason: "eth0 is down"}, cluster.NoInterface, "eth0 is down"},
		"given away": {cluster.Reason{VIP: vip, Protocol: "l2", Code: cluster.AnotherNode, Message: "not announced: node n2 answers for it"},
			published{parted: map[netip.Addr]departure{vip: {until: time.Unix(0, 0)}}}, nil, cluster.AnotherNode, "node n2 answers for it; forwarded until"},
	} {
		got := tt.p.observed(tt.reason, AddressStatus{Address: vip, L2: tt.status}, bgp.Status{})
		if got.Code != tt.code || !strings.Contains(got.Message, tt.says) {
			t.Errorf("%s: %s: %s, want %s: %s", name, got.Code, got.Message, tt.code, tt.says)
		}
	}
}

const linkedWorld = `---
apiVersion: fanfare.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec: {pools: [lan]}
`

// Who answers, and who else uses an address, is told on the Service.
func TestNewsOfAnswers(t *testing.T) {
	p := newPlay(t, told{})
	p.world(plantest.LocalService("web", "uid-web", "192.0.2.1", "n1"), linkedWorld)
	p.tells("at the start")
	vip := netip.MustParseAddr("192.0.2.1")
	answers := func(phase l2.Phase, conflicts int) {
		s := l2.Status{Addr: vip, Phase: phase, Interfaces: []string{"eth0"}}
		if conflicts > 0 {
			s.Conflict = &l2.Conflict{MAC: l2.MAC{2, 0, 0, 0, 0, 5}, Interface: "eth0", Count: conflicts}
		}
		p.answers = []l2.Status{s}
	}
	answers(l2.Probing, 0)
	p.tells("while the link is asked")
	answers(l2.Held, 0)
	p.tells("it answers", "Normal Announced Service/web (uid-web): node n1 answers for 192.0.2.1 on eth0")
	answers(l2.Held, 1)
	p.tells("somebody else does", "Warning AddressInUse Service/web (uid-web): node n1 finds 192.0.2.1 in use: 02:00:00:00:00:05 answers for it on eth0: take the address from it, or out of the pool")
	answers(l2.Held, 2)
	p.tells("and goes on to")
	answers(l2.Conflicting, 3)
	p.answers[0].Reason = "02:00:00:00:00:05 has it"
	p.tells("it gives up", "Normal Withdrawn Service/web (uid-web): node n1 stopped to answer for 192.0.2.1: 02:00:00:00:00:05 has it")
	answers(l2.Held, 0)
	p.tells("it answers again", "Normal Announced Service/web (uid-web): node n1 answers for 192.0.2.1 on eth0")
	p.answers = nil
	p.world(linkedWorld)
	p.tells("the Service is gone")
}
