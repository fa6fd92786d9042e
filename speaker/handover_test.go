package speaker

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/l2"
)

// A speakerGroup is a few speakers that exchange messages.
type speakerGroup struct {
	t     *testing.T
	nodes map[string]*handoverState
	lost  bool // all messages are lost
	dead  map[string]bool
	seen  map[string]uint64 // rounds of "node address" at the last call of reannounced
}

func newSpeakerGroup(t *testing.T, nodes ...string) *speakerGroup {
	c := &speakerGroup{t: t, nodes: map[string]*handoverState{}, dead: map[string]bool{}, seen: map[string]uint64{}}
	for _, name := range nodes {
		c.join(name, nil)
	}
	return c
}

// join starts a speaker on a node.
func (c *speakerGroup) join(name string, known []netip.Addr) *handoverState {
	handover := newHandoverState(name, known)
	c.nodes[name] = handover
	c.connect(name)
	return handover
}

// connect updates a node's members.
func (c *speakerGroup) connect(name string) {
	dead := map[string]bool{}
	for n := range c.dead {
		dead[n] = true
	}
	c.nodes[name].setMembers(func(message []byte) {
		for other, handover := range c.nodes {
			if other != name && !c.lost {
				c.deliver(handover, name, message)
			}
		}
	}, func(node string) bool { return dead[node] })
}

// broadcastState broadcasts a node's full state.
func (c *speakerGroup) broadcastState(name string) {
	for _, message := range c.nodes[name].fullState() {
		c.nodes[name].broadcast(message)
	}
}

func (c *speakerGroup) deliver(handover *handoverState, from string, message []byte) {
	c.t.Helper()
	if len(message) > maxMessage {
		c.t.Errorf("a message of %d bytes", len(message))
	}
	if err := handover.receive(from, message); err != nil {
		c.t.Error(err)
	}
}

// admits reports whether a node that wants an address may answer for it: "no", "yes", or
// "yes, after a probe".
func (c *speakerGroup) admits(node string, a netip.Addr) string {
	handover := c.nodes[node]
	handover.setWanted(sortedset.AddrSet(a))
	admitted := handover.admit([]l2.Address{{Addr: a}}, time.Now())
	switch {
	case len(admitted) == 0:
		return "no"
	case admitted[0].Probe:
		return "yes, after a probe"
	default:
		return "yes"
	}
}

func (c *speakerGroup) expect(when, node string, a netip.Addr, want string) {
	c.t.Helper()
	if got := c.admits(node, a); got != want {
		c.t.Errorf("%s: may %s answer for %s? %s; want %s", when, node, a, got, want)
	}
}

// reannounced returns the addresses that a node has announced again since the last call.
func (c *speakerGroup) reannounced(node string) (addrs []netip.Addr) {
	handover := c.nodes[node]
	for a := range handover.holders {
		for _, admitted := range handover.admit([]l2.Address{{Addr: a}}, time.Now()) {
			if key := node + " " + a.String(); admitted.Round != c.seen[key] {
				c.seen[key] = admitted.Round
				addrs = append(addrs, a)
			}
		}
	}
	return addrs
}

func TestHandover(t *testing.T) {
	x, y := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for name, scenario := range map[string]func(*testing.T, *speakerGroup){
		"a new address is probed": func(t *testing.T, c *speakerGroup) {
			c.expect("without a former owner", "n1", x, "yes, after a probe")
		},
		"a new owner waits until the old one has stopped": func(t *testing.T, c *speakerGroup) {
			c.nodes["n1"].reportChanges([]netip.Addr{x, y})
			c.expect("n1 answers", "n2", x, "no")
			if w := c.nodes["n2"].waiting(time.Now()); w[x] != "n1" || len(w) != 1 {
				t.Errorf("n2 waits for %v", w)
			}
			c.nodes["n1"].reportChanges([]netip.Addr{y})
			select {
			case <-c.nodes["n2"].changed:
			default:
				t.Error("n2 is not notified")
			}
			c.expect("n1 has stopped", "n2", x, "yes")
			if !c.nodes["n2"].next(time.Now()).IsZero() {
				t.Error("n2 still waits")
			}
		},
		"a new owner does not wait for long": func(t *testing.T, c *speakerGroup) {
			c.nodes["n1"].reportChanges([]netip.Addr{x})
			c.expect("n1 answers", "n2", x, "no")
			if at := c.nodes["n2"].next(time.Now()); !at.Equal(time.Now().Add(releaseTimeout)) {
				t.Errorf("n2 waits until %s", at)
			}
			time.Sleep(releaseTimeout)
			c.expect("n1 does not stop", "n2", x, "yes")
			c.nodes["n2"].reportChanges([]netip.Addr{x})
			c.expect("both answer", "n2", x, "yes")
		},
		"an address that is wanted again waits again": func(t *testing.T, c *speakerGroup) {
			c.nodes["n1"].reportChanges([]netip.Addr{x})
			c.expect("n1 answers", "n2", x, "no")
			time.Sleep(releaseTimeout / 2)
			c.nodes["n2"].setWanted(sortedset.AddrSet())
			time.Sleep(releaseTimeout / 2)
			c.expect("n1 answers", "n2", x, "no")
		},
		"a dead node is not waited for": func(t *testing.T, c *speakerGroup) {
			c.nodes["n1"].reportChanges([]netip.Addr{x})
			c.expect("n1 lives", "n2", x, "no")
			c.dead["n1"] = true
			c.connect("n2")
			select {
			case <-c.nodes["n2"].changed:
			default:
				t.Error("n2 is not notified")
			}
			c.expect("n1 is dead", "n2", x, "yes")
		},
		"a new node receives the full state": func(t *testing.T, c *speakerGroup) {
			c.nodes["n1"].reportChanges([]netip.Addr{x})
			c.join("n3", nil)
			c.expect("n3 knows no node", "n3", x, "yes, after a probe")
			c.broadcastState("n1")
			c.expect("n3 has the state of n1", "n3", x, "no")
			c.expect("n2 had it already", "n2", x, "no")
		},
		"a restarted speaker holds no address": func(t *testing.T, c *speakerGroup) {
			c.nodes["n1"].reportChanges([]netip.Addr{x})
			c.nodes["n2"].reportChanges([]netip.Addr{x})
			c.join("n1", []netip.Addr{x})
			c.expect("n1 has sent nothing", "n2", y, "yes, after a probe")
			c.broadcastState("n1")
			if again := c.reannounced("n2"); !slices.Equal(again, []netip.Addr{x}) {
				t.Errorf("n2 announces %v again", again)
			}
			c.nodes["n2"].reportChanges(nil)
			c.expect("n1 has restarted", "n2", x, "yes")
			c.expect("it had the address", "n1", x, "yes")
		},
		"messages that overtake each other": func(t *testing.T, c *speakerGroup) {
			var said [][]byte
			handover := c.nodes["n1"]
			handover.setMembers(func(m []byte) { said = append(said, m) }, handover.isDead)
			handover.reportChanges([]netip.Addr{x})
			handover.reportChanges(nil)
			handover.reportChanges([]netip.Addr{x})
			handover.reportChanges(nil)
			for _, i := range []int{3, 0, 2, 1} {
				c.deliver(c.nodes["n2"], "n1", said[i])
			}
			c.expect("the newest message counts", "n2", x, "yes")
		},
		"an address that another node stopped answering for is announced again": func(t *testing.T, c *speakerGroup) {
			c.nodes["n1"].reportChanges([]netip.Addr{x, y})
			// n1 is suspended. n2 takes over, and stops when n1 resumes.
			c.nodes["n2"].reportChanges([]netip.Addr{x})
			if again := c.reannounced("n1"); len(again) > 0 {
				t.Errorf("while n2 answers, n1 announces %v again", again)
			}
			c.nodes["n2"].reportChanges(nil)
			if again := c.reannounced("n1"); !slices.Equal(again, []netip.Addr{x}) {
				t.Errorf("n1 announces %v again", again)
			}
			if again := c.reannounced("n1"); len(again) > 0 {
				t.Errorf("n1 announces %v a third time", again)
			}
		},
		"an address of a dead node is announced again": func(t *testing.T, c *speakerGroup) {
			c.nodes["n1"].reportChanges([]netip.Addr{x, y})
			c.nodes["n2"].reportChanges([]netip.Addr{y})
			c.dead["n2"] = true
			c.connect("n1")
			if again := c.reannounced("n1"); !slices.Equal(again, []netip.Addr{y}) {
				t.Errorf("n1 announces %v again", again)
			}
			c.connect("n1")
			if again := c.reannounced("n1"); len(again) > 0 {
				t.Errorf("without a death, n1 announces %v again", again)
			}
		},
		"a resumed speaker announces all addresses again": func(t *testing.T, c *speakerGroup) {
			c.nodes["n1"].reportChanges([]netip.Addr{x})
			c.nodes["n2"].reportChanges([]netip.Addr{y})
			c.nodes["n1"].reannounceAll()
			if again := c.reannounced("n1"); !slices.Equal(again, []netip.Addr{x}) {
				t.Errorf("n1 announces %v again", again)
			}
		},
		"an address without a Service is forgotten after a while": func(t *testing.T, c *speakerGroup) {
			c.nodes["n1"].reportChanges([]netip.Addr{x, y})
			c.nodes["n2"].setAssigned(assignedSet(), assignedSet(&plan.Address{Addr: y}), time.Now())
			c.expect("it may get a Service", "n2", x, "no")
			c.nodes["n2"].setWanted(sortedset.AddrSet())
			time.Sleep(holderLifetime + time.Second)
			for _, handover := range c.nodes {
				handover.setAssigned(assignedSet(), assignedSet(&plan.Address{Addr: y}), time.Now())
			}
			c.expect("it got none", "n2", x, "yes, after a probe")
			c.expect("it has a Service", "n2", y, "no")
			c.expect("n1 still answers for it", "n1", x, "yes")
		},
		"an address with a former owner is not probed": func(t *testing.T, c *speakerGroup) {
			c.lost = true
			c.nodes["n2"].setAssigned(assignedSet(),
				assignedSet(&plan.Address{Addr: x, Owner: "n1"}, &plan.Address{Addr: y, Owner: "n2"}), time.Now())
			c.expect("it was n1's", "n2", x, "yes")
			c.expect("it is n2's from the first", "n2", y, "yes, after a probe")
		},
		"many addresses go in many messages": func(t *testing.T, c *speakerGroup) {
			var all []netip.Addr
			for a := y; len(all) < 100; a = a.Next() {
				all = append(all, a)
			}
			c.nodes["n1"].reportChanges(all)
			c.expect("all messages arrived", "n2", all[len(all)-1], "no")
			c.nodes["n1"].reportChanges(nil)
			c.expect("all messages arrived", "n2", all[len(all)-1], "yes")
		},
		"invalid messages change nothing": func(t *testing.T, c *speakerGroup) {
			c.nodes["n1"].reportChanges([]netip.Addr{x})
			good := message{instance: 1, sequence: 1, released: []netip.Addr{x}, held: []netip.Addr{y}}.encode()[0]
			for n := range good {
				if n == 17 || n == 22 {
					continue // a valid message without the last address
				}
				if err := c.nodes["n2"].receive("n3", good[:n]); err == nil {
					t.Errorf("%d bytes of %d are accepted", n, len(good))
				}
			}
			if err := c.nodes["n2"].receive("n3", append([]byte{4}, good[1:]...)); err == nil {
				t.Error("a message of another release is accepted")
			}
			if err := c.nodes["n2"].receive("n2", good); err != nil {
				t.Error(err)
			}
			c.expect("n1 answers", "n2", x, "no")
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { scenario(t, newSpeakerGroup(t, "n1", "n2")) })
		})
	}
}

// The documentation has the size of all states that a returning node receives.
func TestFullStateSizeIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/layer2.md")
	if err != nil {
		t.Fatal(err)
	}
	// Bytes of a packet besides its message: IPv4 and UDP headers, encryption, checksum,
	// and gossip's envelope with a name of 16 letters.
	const besides = 28 + 30 + 5 + 18 + 16
	for _, world := range []struct{ nodes, addresses int }{{10, 1000}, {100, 10000}, {1000, 10000}} {
		handover := newHandoverState("n1", nil)
		var mine []netip.Addr
		for a := netip.MustParseAddr("192.0.2.0"); len(mine) < world.addresses/world.nodes; a = a.Next() {
			mine = append(mine, a)
		}
		handover.reportChanges(mine)
		bytes := 0
		for _, m := range handover.fullState() {
			bytes += len(m) + besides
		}
		row := fmt.Sprintf("| %d | %d | %d |", world.nodes, world.addresses, (bytes*(world.nodes-1)+50)/100*100)
		if !strings.Contains(string(text), row) {
			t.Errorf("docs/reference/layer2.md has no row %s", row)
		}
	}
}

// The old owner answers until the new owner is ready, if that is alive, for a bounded time.
func TestOldOwnerKeepsUntilReady(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := netip.MustParseAddr("192.0.2.1")
		for name, tt := range map[string]struct {
			owner string
			story func(handover *handoverState, deliver func(message))
			want  time.Duration
		}{
			"it is not ready": {"n2", func(handover *handoverState, deliver func(message)) {
				deliver(message{})
			}, keepTimeout},
			"its state never arrived": {"n2", func(handover *handoverState, deliver func(message)) {}, 0},
			"no owner": {"", func(handover *handoverState, deliver func(message)) {
				deliver(message{})
			}, 0},
			"it waits": {"n2", func(handover *handoverState, deliver func(message)) {
				deliver(message{kind: readyMessage, held: []netip.Addr{a}})
			}, 0},
			"it answers": {"n2", func(handover *handoverState, deliver func(message)) {
				deliver(message{held: []netip.Addr{a}})
			}, 0},
			"another one waits": {"n3", func(handover *handoverState, deliver func(message)) {
				deliver(message{kind: readyMessage, held: []netip.Addr{a}})
			}, 0},
			"it is dead": {"n2", func(handover *handoverState, deliver func(message)) {
				deliver(message{})
				handover.setMembers(handover.broadcast, func(n string) bool { return n == "n2" })
			}, 0},
			"it is only asked about": {"n2", func(handover *handoverState, deliver func(message)) {
				deliver(message{})
				handover.reportChanges(nil)
			}, 0},
			"it has waited, long ago": {"n2", func(handover *handoverState, deliver func(message)) {
				deliver(message{kind: readyMessage, held: []netip.Addr{a}})
				time.Sleep(readyLifetime)
			}, keepTimeout},
			"it waits for another one": {"n2", func(handover *handoverState, deliver func(message)) {
				deliver(message{kind: readyMessage, held: []netip.Addr{a.Next()}})
			}, keepTimeout},
		} {
			handover := newHandoverState("n1", nil)
			handover.reportChanges([]netip.Addr{a})
			tt.story(handover, func(s message) {
				s.instance, s.sequence = 1, 1
				if err := handover.receive("n2", s.encode()[0]); err != nil {
					t.Error(err)
				}
			})
			began := time.Now()
			for handover.keeps(a, tt.owner, time.Now()) {
				time.Sleep(time.Until(handover.next(time.Now())))
			}
			if took := time.Since(began); took != tt.want {
				t.Errorf("%s: kept for %s, want %s", name, took, tt.want)
			}
		}
	})
}

// A process that was suspended announces its addresses again when it knows which nodes have
// answered for them meanwhile, or after a while.
func TestResumed(t *testing.T) {
	c := newSpeakerGroup(t, "n1", "n2")
	x := netip.MustParseAddr("192.0.2.1")
	n1 := c.nodes["n1"]
	n1.reportChanges([]netip.Addr{x})
	c.reannounced("n1")
	for _, tt := range []struct {
		synced bool
		after  time.Duration
		want   bool
	}{{true, 0, true}, {false, 0, false}, {false, discoveryTime, true}} {
		now := time.Now()
		n1.resumed(now)
		if len(n1.synced) > 0 {
			t.Error("the state of other nodes counts as known")
		}
		since := n1.announceResumed(tt.synced, now.Add(tt.after))
		if again := len(c.reannounced("n1")) > 0; again != tt.want || since.IsZero() != tt.want {
			t.Errorf("synced %v, after %s: announced %v, waits since %v; want %v", tt.synced, tt.after, again, since,
				tt.want)
		}
	}
	n1.announceResumed(true, time.Now())
	if again := c.reannounced("n1"); len(again) > 0 {
		t.Errorf("announced twice: %v", again)
	}
}
