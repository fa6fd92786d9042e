package speaker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/event"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// An eventTest is a sequence of observations and their Events.
type eventTest struct {
	t        *testing.T
	reported reported
	observation
}

var testTime = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func newEventTest(t *testing.T, known reported) *eventTest {
	p := &eventTest{
		t: t, reported: known, observation: observation{passResult: passResult{programmed: true}, at: testTime},
	}
	p.session("tor1", bgp.Idle, "")
	p.session("tor2", bgp.Idle, "")
	p.world()
	return p
}

func (p *eventTest) world(services ...string) {
	p.desired = plan.Decide(plan.Config{Node: "n1"},
		plantest.Snapshot(p.t, []byte(plantest.TwoRouters+strings.Join(services, ""))))
	p.announced = p.desired.Announce
}

func (p *eventTest) session(name string, state bgp.SessionState, lastError string) {
	p.sessions = slices.DeleteFunc(slices.Clone(p.sessions), func(s bgp.SessionStatus) bool { return s.Name == name })
	p.sessions = append(p.sessions, bgp.SessionStatus{
		Name: name, PeerAddress: netip.MustParseAddr("10.0.0." + name[3:]), PeerASN: 65000, State: state, Since: p.at,
		LastError: lastError,
	})
	slices.SortFunc(p.sessions, func(a, b bgp.SessionStatus) int { return strings.Compare(a.Name, b.Name) })
}

// expectEvents checks the new Events, and that a second call returns none.
func (p *eventTest) expectEvents(when string, want ...string) {
	p.t.Helper()
	p.at = p.at.Add(time.Second)
	var got []string
	for range 2 {
		var all []event.Event
		p.reported, all = newEvents(p.reported, p.observation, 3)
		for _, e := range all {
			kind := map[bool]string{true: "Warning", false: "Normal"}[e.Warning]
			got = append(got, fmt.Sprintf("%s %s %s/%s (%s): %s", kind, e.Reason, e.Regarding.Kind, e.Regarding.Name,
				e.Regarding.UID, e.Note))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		p.t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

func TestSessionEvents(t *testing.T) {
	p := newEventTest(t, reported{})
	p.expectEvents("at the start")
	p.session("tor1", bgp.Established, "")
	p.expectEvents("one is up", "Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with "+
		"router tor1 (10.0.0.1, AS65000)")
	p.sessions[1].LastError = "connection refused"
	p.at = p.at.Add(sessionGrace)
	p.expectEvents("the other is not, for long",
		"Warning SessionDown BGPPeer/tor2 (uid-tor2): node n1 has no session with router tor2 (10.0.0.2, "+
			"AS65000): connection refused")
	p.session("tor1", bgp.Idle, "hold timer: 100% expired")
	p.expectEvents("lost", "Warning SessionLost BGPPeer/tor1 (uid-tor1): node n1 lost its session with router tor1 "+
		"(10.0.0.1, AS65000): hold timer: 100% expired")
	p.session("tor1", bgp.OpenSent, "connection refused")
	p.sessions[0].LossReason = "hold timer: 100% expired"
	p.expectEvents("on the way up")
	p.session("tor1", bgp.Established, "")
	p.expectEvents("again", "Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with router "+
		"tor1 (10.0.0.1, AS65000)")
	p.session("tor1", bgp.Established, "connection refused")
	p.sessions[0].LossReason = "it rebooted"
	p.expectEvents("between two looks", "Warning SessionLost BGPPeer/tor1 (uid-tor1): node n1 lost its session with "+
		"router tor1 (10.0.0.1, AS65000), and established it again: it rebooted")
	p.sessions = nil
	p.expectEvents("no peer selects the node: its owner did that")
}

func TestBFDEvents(t *testing.T) {
	p := newEventTest(t, reported{})
	const who = "router tor1 (10.0.0.1, AS65000)"
	bfd := func(state, reason string) {
		p.sessions[0].BFD = &bgp.BFDStatus{State: state, Since: p.at, Reason: reason}
	}
	p.session("tor1", bgp.Established, "")
	bfd("Down", "the router sends nothing; does it have BFD for this node?")
	p.expectEvents("up without BFD", "Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with "+
		who)
	p.at = p.at.Add(sessionGrace)
	p.sessions[1].Since = p.at
	p.expectEvents("without, for long", "Warning BFDDown BGPPeer/tor1 (uid-tor1): node n1 has no BFD with "+who+
		": the router sends nothing; does it have BFD for this node?")
	bfd("Up", "")
	p.expectEvents("up", "Normal BFDUp BGPPeer/tor1 (uid-tor1): node n1 has BFD with "+who)
	bfd("Down", "no packet from the router for 150ms")
	p.expectEvents("lost", "Warning BFDDown BGPPeer/tor1 (uid-tor1): node n1 lost BFD with "+who+
		": no packet from the router for 150ms")
	bfd("Init", "no packet from the router for 150ms")
	p.expectEvents("on the way up")
	bfd("Up", "")
	p.expectEvents("again", "Normal BFDUp BGPPeer/tor1 (uid-tor1): node n1 has BFD with "+who)
	p.sessions[0].BFD = nil
	p.expectEvents("switched off, without an Event")
}

func TestAddressEvents(t *testing.T) {
	p := newEventTest(t, reported{})
	web, db := plantest.LocalService("web", "uid-web", "192.0.2.1", "n1"),
		plantest.LocalService("db", "uid-db", "192.0.2.2", "n1")
	p.world(web)
	p.expectEvents("no router listens")
	p.session("tor1", bgp.Established, "")
	p.expectEvents("a router listens",
		"Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with router tor1 (10.0.0.1, AS65000)",
		"Normal Announced Service/web (uid-web): node n1 announces 192.0.2.1 to tor1")
	p.session("tor2", bgp.Established, "")
	p.sessions[1].Omissions = []bgp.Omission{{Prefix: netip.MustParsePrefix("192.0.2.2/32")}}
	p.world(web, db)
	p.expectEvents("another Service, with an address that one router cannot receive",
		"Normal SessionEstablished BGPPeer/tor2 (uid-tor2): node n1 has a session with router tor2 (10.0.0.2, AS65000)",
		"Normal Announced Service/db (uid-db): node n1 announces 192.0.2.2 to tor1")
	p.world(plantest.LocalService("web", "uid-web", "192.0.2.1", "n2"), db)
	p.expectEvents("the pod moves", "Normal Withdrawn Service/web (uid-web): node n1 withdrew 192.0.2.1 from tor1, "+
		"tor2: externalTrafficPolicy is Local and no endpoint is ready on n1, only on n2")
	p.world(plantest.LocalService("web", "uid-web", "192.0.2.1", "n2"))
	p.expectEvents("a Service is deleted, without an Event")
	p.world(web, db)
	p.expectEvents("both are back",
		"Normal Announced Service/web (uid-web): node n1 announces 192.0.2.1 to tor1, tor2",
		"Normal Announced Service/db (uid-db): node n1 announces 192.0.2.2 to tor1")
	p.world(web, plantest.LocalService("db", "uid-2", "192.0.2.3", "n1"))
	p.expectEvents("another Service of that name",
		"Normal Announced Service/db (uid-2): node n1 announces 192.0.2.3 to tor1, tor2")
	p.world(web, plantest.LocalService("db", "uid-2", "192.0.2.4", "n1"))
	p.expectEvents("its address changes",
		"Normal Withdrawn Service/db (uid-2): node n1 withdrew 192.0.2.3 from tor1, tor2: the "+
			"Service no longer holds it",
		"Normal Announced Service/db (uid-2): node n1 announces 192.0.2.4 to tor1, tor2")
	p.announced, p.programmed, p.err, p.pendingSince = sortedset.AddrSet(), false, errors.New("forward: no"), p.at
	p.expectEvents("the table is gone and cannot be put back",
		"Normal Withdrawn Service/web (uid-web): node n1 withdrew 192.0.2.1 from tor1, tor2: forward: no",
		"Normal Withdrawn Service/db (uid-2): node n1 withdrew 192.0.2.4 from tor1, tor2: forward: no")
}

// The loss of all routers causes Events of the sessions, not of each address.
func TestManyAddressEventsAreSummarised(t *testing.T) {
	p := newEventTest(t, reported{})
	p.session("tor1", bgp.Established, "")
	var many []string
	for i := range 10 {
		many = append(many, plantest.LocalService(fmt.Sprintf("s%d", i), fmt.Sprintf("uid-%d", i),
			fmt.Sprintf("192.0.2.%d", 10+i), "n1"))
	}
	p.world(many...)
	p.expectEvents("a mass", "Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with router "+
		"tor1 (10.0.0.1, AS65000)",
		"Normal AnnouncementsChanged Node/n1 (uid-n1): node n1 announced 10 addresses and withdrew 0; it announces "+
			"10 now: run `fanfare status` there for the list")
	p.session("tor1", bgp.Idle, "cable")
	p.expectEvents("no router", "Warning SessionLost BGPPeer/tor1 (uid-tor1): node n1 lost its session with router "+
		"tor1 (10.0.0.1, AS65000): cable")
	p.session("tor1", bgp.Established, "")
	p.expectEvents("it is back", "Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with "+
		"router tor1 (10.0.0.1, AS65000)")
	p.world(many[6:]...)
	p.expectEvents("most go", "Normal AnnouncementsChanged Node/n1 (uid-n1): node n1 announced 0 addresses and "+
		"withdrew 6; it announces 4 now: run `fanfare status` there for the list")
}

func TestForwardingEvents(t *testing.T) {
	p := newEventTest(t, reported{})
	p.expectEvents("all is well")
	p.programmed, p.err, p.pendingSince = false, errors.New("forward: "+strings.Repeat("é", 1000)), p.at
	p.expectEvents("a failure that may be over soon")
	p.at = p.at.Add(forwardGrace)
	const begin = "node n1 cannot program the kernel, and announces nothing new: forward: "
	p.expectEvents("it is not", "Warning ForwardingFailed Node/n1 (uid-n1): "+begin+
		strings.Repeat("é", (maxNote-len(begin))/2))
	p.err = errors.New("forward: another reason")
	p.expectEvents("nor later")
	p.programmed, p.err, p.pendingSince = true, nil, time.Time{}
	p.expectEvents("it is over", "Normal ForwardingRestored Node/n1 (uid-n1): node n1 has programmed the kernel")
}

func TestObstacleEvents(t *testing.T) {
	p := newEventTest(t, reported{})
	p.expectEvents("nothing is in the way")
	p.obstacles = []obstacle.Obstacle{{Code: obstacle.ForwardingOff, About: "net.ipv4.ip_forward",
		Message: "it is 0: set it to 1"}}
	p.expectEvents("something is", "Warning TrafficObstructed Node/n1 (uid-n1): node n1 has an obstacle to traffic: "+
		"it is 0: set it to 1")
	p.obstacles = []obstacle.Obstacle{{Code: obstacle.ForwardingOff, About: "net.ipv4.ip_forward",
		Message: "in other words"}}
	p.expectEvents("it still is")
	p.obstacles = []obstacle.Obstacle{{Code: obstacle.Firewall, About: "chain inet filter forward",
		Message: "it drops"}}
	p.expectEvents("and then something else",
		"Warning TrafficObstructed Node/n1 (uid-n1): node n1 has an obstacle to traffic: it drops",
		"Normal TrafficUnobstructed Node/n1 (uid-n1): node n1 no longer has an obstacle to traffic: "+
			"net.ipv4.ip_forward (ForwardingOff)")
}

func TestEventsAfterRestart(t *testing.T) {
	web, db := plantest.LocalService("web", "uid-web", "192.0.2.1", "n1"),
		plantest.LocalService("db", "uid-db", "192.0.2.2", "n1")
	p := newEventTest(t, reportedBefore([]netip.Addr{netip.MustParseAddr("192.0.2.9"),
		netip.MustParseAddr("192.0.2.1")}, testTime))
	p.world(web, db)
	p.announced = sortedset.AddrSet()
	p.expectEvents("before anything is done")
	p.announced = p.desired.Announce
	p.session("tor1", bgp.Established, "")
	p.expectEvents("only the Service that was created meanwhile",
		"Normal Announced Service/db (uid-db): node n1 announces 192.0.2.2 to tor1")
	p.world(plantest.LocalService("web", "uid-web", "192.0.2.1", "n2"), db)
	p.expectEvents("the pod moves", "Normal Withdrawn Service/web (uid-web): node n1 withdrew 192.0.2.1 from tor1: "+
		"externalTrafficPolicy is Local and no endpoint is ready on n1, only on n2")
	p.world(web, db)
	p.expectEvents("and comes back", "Normal Announced Service/web (uid-web): node n1 announces 192.0.2.1 to tor1")
	p.at = p.at.Add(sessionGrace)
	p.expectEvents("a router does not come back",
		"Warning SessionDown BGPPeer/tor2 (uid-tor2): node n1 has no session with router tor2 (10.0.0.2, "+
			"AS65000): not up yet")
	p.session("tor2", bgp.Established, "")
	p.world(web, db, plantest.LocalService("old", "uid-old", "192.0.2.9", "n1"))
	p.expectEvents("late", "Normal SessionEstablished BGPPeer/tor2 (uid-tor2): node n1 has a session with router "+
		"tor2 (10.0.0.2, AS65000)",
		"Normal Announced Service/old (uid-old): node n1 announces 192.0.2.9 to tor1, tor2")
}

// In any sequence of observations, Announced and Withdrawn of an address alternate.
func TestAddressEventsAlternate(t *testing.T) {
	worlds := map[int]*plan.Desired{} // keyed by the Services with a local pod, in bits
	p := newEventTest(t, reported{})
	for here := range 8 {
		var services []string
		for i := range 3 {
			services = append(services, plantest.LocalService(fmt.Sprintf("s%d", i), fmt.Sprintf("uid-%d", i),
				fmt.Sprintf("192.0.2.%d", 10+i), []string{"n2", "n1"}[here>>i&1]))
		}
		p.world(services...)
		worlds[here] = p.desired
	}
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 1))
		p.reported = reported{}
		on := map[string]bool{} // Services whose address is announced according to Events
		for range 40 {
			p.desired = worlds[random.IntN(8)]
			p.announced = p.desired.Announce
			p.session("tor1", []bgp.SessionState{bgp.Established, bgp.Idle}[random.IntN(2)], "")
			p.at = p.at.Add(time.Second)
			var all []event.Event
			p.reported, all = newEvents(p.reported, p.observation, 10)
			for _, e := range all {
				if e.Regarding.Kind != "Service" {
					continue
				}
				if begins := e.Reason == "Announced"; on[e.Regarding.Name] == begins {
					t.Fatalf("seed %d: reported twice: %s", seed, e.Note)
				}
				on[e.Regarding.Name] = !on[e.Regarding.Name]
			}
			if p.sessions[0].State != bgp.Established {
				continue
			}
			for i := range 3 {
				addr, name := netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", 10+i)), fmt.Sprintf("s%d", i)
				if on[name] != sortedset.HasAddr(p.announced, addr) {
					t.Fatalf("seed %d: %s is announced: %v, reported: %v", seed, addr, !on[name], on[name])
				}
			}
		}
	}
}
