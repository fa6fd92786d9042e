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
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A play is a sequence of scenes, and what is told of them.
type play struct {
	t    *testing.T
	told told
	scene
}

var curtain = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func newPlay(t *testing.T, known told) *play {
	p := &play{t: t, told: known, scene: scene{at: curtain, programmed: true}}
	p.session("tor1", bgp.Idle, "")
	p.session("tor2", bgp.Idle, "")
	p.world()
	return p
}

func (p *play) world(services ...string) {
	p.desired = plan.Decide(plan.Config{Node: "n1"}, plantest.Snapshot(p.t, []byte(plantest.TwoRouters+strings.Join(services, ""))))
	p.announced = p.desired.Announce
}

func (p *play) session(name string, state bgp.SessionState, lastError string) {
	p.sessions = slices.DeleteFunc(slices.Clone(p.sessions), func(s bgp.SessionStatus) bool { return s.Name == name })
	p.sessions = append(p.sessions, bgp.SessionStatus{
		Name: name, PeerAddress: netip.MustParseAddr("10.0.0." + name[3:]), PeerASN: 65000, State: state, Since: p.at, LastError: lastError,
	})
	slices.SortFunc(p.sessions, func(a, b bgp.SessionStatus) int { return strings.Compare(a.Name, b.Name) })
}

// tells checks what is told now, and that it is told once.
func (p *play) tells(when string, want ...string) {
	p.t.Helper()
	p.at = p.at.Add(time.Second)
	var got []string
	for range 2 {
		var all []event
		p.told, all = news(p.told, p.scene, 3)
		for _, e := range all {
			kind := map[bool]string{true: "Warning", false: "Normal"}[e.warning]
			got = append(got, fmt.Sprintf("%s %s %s/%s (%s): %s", kind, e.reason, e.regarding.Kind, e.regarding.Name, e.regarding.UID, e.note))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		p.t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

func TestNewsOfSessions(t *testing.T) {
	p := newPlay(t, told{})
	p.tells("at the start")
	p.session("tor1", bgp.Established, "")
	p.tells("one is up", "Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with router tor1 (10.0.0.1, AS65000)")
	p.sessions[1].LastError = "connection refused"
	p.at = p.at.Add(sessionPatience)
	p.tells("the other is not, for long", "Warning SessionDown BGPPeer/tor2 (uid-tor2): node n1 gets no session with router tor2 (10.0.0.2, AS65000): connection refused")
	p.session("tor1", bgp.Idle, "hold timer: 100% expired")
	p.tells("lost", "Warning SessionLost BGPPeer/tor1 (uid-tor1): node n1 lost its session with router tor1 (10.0.0.1, AS65000): hold timer: 100% expired")
	p.session("tor1", bgp.OpenSent, "connection refused")
	p.sessions[0].LossReason = "hold timer: 100% expired"
	p.tells("on the way up")
	p.session("tor1", bgp.Established, "")
	p.tells("again", "Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with router tor1 (10.0.0.1, AS65000)")
	p.session("tor1", bgp.Established, "connection refused")
	p.sessions[0].LossReason = "it rebooted"
	p.tells("between two looks", "Warning SessionLost BGPPeer/tor1 (uid-tor1): node n1 lost its session with router tor1 (10.0.0.1, AS65000), and has it again: it rebooted")
	p.sessions = nil
	p.tells("no peer selects the node: its owner did that")
}

func TestNewsOfBFD(t *testing.T) {
	p := newPlay(t, told{})
	const who = "router tor1 (10.0.0.1, AS65000)"
	bfd := func(state, reason string) {
		p.sessions[0].BFD = &bgp.BFDStatus{State: state, Since: p.at, Reason: reason}
	}
	p.session("tor1", bgp.Established, "")
	bfd("Down", "the router says nothing; does it have BFD for this node?")
	p.tells("up without BFD", "Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with "+who)
	p.at = p.at.Add(sessionPatience)
	p.sessions[1].Since = p.at
	p.tells("without, for long", "Warning BFDDown BGPPeer/tor1 (uid-tor1): node n1 does not hear, by BFD, "+who+": the router says nothing; does it have BFD for this node?")
	bfd("Up", "")
	p.tells("up", "Normal BFDUp BGPPeer/tor1 (uid-tor1): node n1 hears, by BFD, "+who)
	bfd("Down", "nothing heard from the router for 150ms")
	p.tells("lost", "Warning BFDDown BGPPeer/tor1 (uid-tor1): node n1 no longer hears, by BFD, "+who+": nothing heard from the router for 150ms")
	bfd("Init", "nothing heard from the router for 150ms")
	p.tells("on the way up")
	bfd("Up", "")
	p.tells("again", "Normal BFDUp BGPPeer/tor1 (uid-tor1): node n1 hears, by BFD, "+who)
	p.sessions[0].BFD = nil
	p.tells("switched off: who did that knows")
}

func TestNewsOfAddresses(t *testing.T) {
	p := newPlay(t, told{})
	web, db := plantest.LocalService("web", "uid-web", "192.0.2.1", "n1"), plantest.LocalService("db", "uid-db", "192.0.2.2", "n1")
	p.world(web)
	p.tells("no router listens")
	p.session("tor1", bgp.Established, "")
	p.tells("a router listens",
		"Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with router tor1 (10.0.0.1, AS65000)",
		"Normal Announced Service/web (uid-web): node n1 announces 192.0.2.1 to tor1")
	p.session("tor2", bgp.Established, "")
	p.sessions[1].Omissions = []bgp.Omission{{Prefix: netip.MustParsePrefix("192.0.2.2/32")}}
	p.world(web, db)
	p.tells("another Service, which one router cannot be told",
		"Normal SessionEstablished BGPPeer/tor2 (uid-tor2): node n1 has a session with router tor2 (10.0.0.2, AS65000)",
		"Normal Announced Service/db (uid-db): node n1 announces 192.0.2.2 to tor1")
	p.world(plantest.LocalService("web", "uid-web", "192.0.2.1", "n2"), db)
	p.tells("the pod moves", "Normal Withdrawn Service/web (uid-web): node n1 withdrew 192.0.2.1 from tor1, tor2: externalTrafficPolicy is Local and no endpoint is ready on n1, only on n2")
	p.world(plantest.LocalService("web", "uid-web", "192.0.2.1", "n2"))
	p.tells("a Service is deleted: nobody asks for its Events")
	p.world(web, db)
	p.tells("both are back",
		"Normal Announced Service/web (uid-web): node n1 announces 192.0.2.1 to tor1, tor2",
		"Normal Announced Service/db (uid-db): node n1 announces 192.0.2.2 to tor1")
	p.world(web, plantest.LocalService("db", "uid-2", "192.0.2.3", "n1"))
	p.tells("another Service of that name",
		"Normal Announced Service/db (uid-2): node n1 announces 192.0.2.3 to tor1, tor2")
	p.world(web, plantest.LocalService("db", "uid-2", "192.0.2.4", "n1"))
	p.tells("its address changes",
		"Normal Withdrawn Service/db (uid-2): node n1 withdrew 192.0.2.3 from tor1, tor2: the Service does not hold it any more",
		"Normal Announced Service/db (uid-2): node n1 announces 192.0.2.4 to tor1, tor2")
	p.announced, p.programmed, p.err, p.behind = nil, false, errors.New("forward: no"), p.at
	p.tells("the table is gone and cannot be put back",
		"Normal Withdrawn Service/web (uid-web): node n1 withdrew 192.0.2.1 from tor1, tor2: forward: no",
		"Normal Withdrawn Service/db (uid-2): node n1 withdrew 192.0.2.4 from tor1, tor2: forward: no")
}

// The loss of all routers is told of the sessions, and not of each address.
func TestNewsOfManyAddresses(t *testing.T) {
	p := newPlay(t, told{})
	p.session("tor1", bgp.Established, "")
	var many []string
	for i := range 10 {
		many = append(many, plantest.LocalService(fmt.Sprintf("s%d", i), fmt.Sprintf("uid-%d", i), fmt.Sprintf("192.0.2.%d", 10+i), "n1"))
	}
	p.world(many...)
	p.tells("a mass", "Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with router tor1 (10.0.0.1, AS65000)",
		"Normal AnnouncementsChanged Node/n1 (uid-n1): node n1 began to announce 10 addresses and withdrew 0; it announces 10 now: `fanfare status` there says which")
	p.session("tor1", bgp.Idle, "cable")
	p.tells("no router", "Warning SessionLost BGPPeer/tor1 (uid-tor1): node n1 lost its session with router tor1 (10.0.0.1, AS65000): cable")
	p.session("tor1", bgp.Established, "")
	p.tells("it is back", "Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with router tor1 (10.0.0.1, AS65000)")
	p.world(many[6:]...)
	p.tells("most go", "Normal AnnouncementsChanged Node/n1 (uid-n1): node n1 began to announce 0 addresses and withdrew 6; it announces 4 now: `fanfare status` there says which")
}

func TestNewsOfForwarding(t *testing.T) {
	p := newPlay(t, told{})
	p.tells("all is well")
	p.programmed, p.err, p.behind = false, errors.New("forward: "+strings.Repeat("é", 1000)), p.at
	p.tells("a failure that may be over soon")
	p.at = p.at.Add(forwardPatience)
	const begin = "node n1 cannot give the kernel what is desired, and announces nothing new: forward: "
	p.tells("it is not", "Warning ForwardingFailed Node/n1 (uid-n1): "+begin+strings.Repeat("é", (maxNote-len(begin))/2))
	p.err = errors.New("forward: another reason")
	p.tells("nor later")
	p.programmed, p.err, p.behind = true, nil, time.Time{}
	p.tells("it is over", "Normal ForwardingRestored Node/n1 (uid-n1): node n1 has given the kernel what is desired")
}

// After a restart, what was so before is no news.
func TestNewsOfObstacles(t *testing.T) {
	p := newPlay(t, told{})
	p.tells("nothing is in the way")
	p.obstacles = []proxy.Obstacle{{Code: proxy.ForwardingOff, About: "net.ipv4.ip_forward", Message: "it is 0: set it to 1"}}
	p.tells("something is", "Warning TrafficObstructed Node/n1 (uid-n1): node n1 has something in the way of traffic: it is 0: set it to 1")
	p.obstacles = []proxy.Obstacle{{Code: proxy.ForwardingOff, About: "net.ipv4.ip_forward", Message: "in other words"}}
	p.tells("it still is")
	p.obstacles = []proxy.Obstacle{{Code: proxy.Firewall, About: "chain inet filter forward", Message: "it drops"}}
	p.tells("and then something else",
		"Warning TrafficObstructed Node/n1 (uid-n1): node n1 has something in the way of traffic: it drops",
		"Normal TrafficUnobstructed Node/n1 (uid-n1): node n1 has no longer in the way of traffic: net.ipv4.ip_forward (ForwardingOff)")
}

func TestNewsAfterRestart(t *testing.T) {
	web, db := plantest.LocalService("web", "uid-web", "192.0.2.1", "n1"), plantest.LocalService("db", "uid-db", "192.0.2.2", "n1")
	p := newPlay(t, inherit([]netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.1")}, curtain))
	p.world(web, db)
	p.announced = nil
	p.tells("before anything is done")
	p.announced = p.desired.Announce
	p.session("tor1", bgp.Established, "")
	p.tells("only the Service that was created meanwhile", "Normal Announced Service/db (uid-db): node n1 announces 192.0.2.2 to tor1")
	p.world(plantest.LocalService("web", "uid-web", "192.0.2.1", "n2"), db)
	p.tells("the pod moves", "Normal Withdrawn Service/web (uid-web): node n1 withdrew 192.0.2.1 from tor1: externalTrafficPolicy is Local and no endpoint is ready on n1, only on n2")
	p.world(web, db)
	p.tells("and comes back", "Normal Announced Service/web (uid-web): node n1 announces 192.0.2.1 to tor1")
	p.at = p.at.Add(sessionPatience)
	p.tells("a router does not come back", "Warning SessionDown BGPPeer/tor2 (uid-tor2): node n1 gets no session with router tor2 (10.0.0.2, AS65000): not up yet")
	p.session("tor2", bgp.Established, "")
	p.world(web, db, plantest.LocalService("old", "uid-old", "192.0.2.9", "n1"))
	p.tells("late", "Normal SessionEstablished BGPPeer/tor2 (uid-tor2): node n1 has a session with router tor2 (10.0.0.2, AS65000)",
		"Normal Announced Service/old (uid-old): node n1 announces 192.0.2.9 to tor1, tor2")
}

// In any sequence of scenes, what is told adds up: of one address Announced and
// Withdrawn take turns, and nothing is told twice.
func TestNewsAddUp(t *testing.T) {
	worlds := map[int]*plan.Desired{} // by which Services have their pod here, in bits
	p := newPlay(t, told{})
	for here := range 8 {
		var services []string
		for i := range 3 {
			services = append(services, plantest.LocalService(fmt.Sprintf("s%d", i), fmt.Sprintf("uid-%d", i), fmt.Sprintf("192.0.2.%d", 10+i), []string{"n2", "n1"}[here>>i&1]))
		}
		p.world(services...)
		worlds[here] = p.desired
	}
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 1))
		p.told = told{}
		on := map[string]bool{} // the address of each Service, as Events say
		for range 40 {
			p.desired = worlds[random.IntN(8)]
			p.announced = p.desired.Announce
			p.session("tor1", []bgp.SessionState{bgp.Established, bgp.Idle}[random.IntN(2)], "")
			p.at = p.at.Add(time.Second)
			var all []event
			p.told, all = news(p.told, p.scene, 10)
			for _, e := range all {
				if e.regarding.Kind != "Service" {
					continue
				}
				if begins := e.reason == "Announced"; on[e.regarding.Name] == begins {
					t.Fatalf("seed %d: told twice: %s", seed, e.note)
				}
				on[e.regarding.Name] = !on[e.regarding.Name]
			}
			if p.sessions[0].State != bgp.Established {
				continue
			}
			for i := range 3 {
				addr, name := netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", 10+i)), fmt.Sprintf("s%d", i)
				if on[name] != slices.Contains(p.announced, addr) {
					t.Fatalf("seed %d: %s is announced: %v, told: %v", seed, addr, !on[name], on[name])
				}
			}
		}
	}
}
