package speaker

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/bubble"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
)

// A circle is a few speakers that hear one another, as long as nothing is lost.
type circle struct {
	t     *testing.T
	nodes map[string]*holdings
	lost  bool // nothing that is said is heard
	dead  map[string]bool
	seen  map[string]uint64 // the rounds of "node address" that anew has returned
}

func newCircle(t *testing.T, nodes ...string) *circle {
	c := &circle{t: t, nodes: map[string]*holdings{}, dead: map[string]bool{}, seen: map[string]uint64{}}
	for _, name := range nodes {
		c.join(name, nil)
	}
	return c
}

// join has a speaker begin on a node, after another one or not.
func (c *circle) join(name string, known []netip.Addr) *holdings {
	h := newHoldings(name, known, slog.New(slog.DiscardHandler))
	c.nodes[name] = h
	c.listen(name)
	return h
}

// listen has a node know what became of the others.
func (c *circle) listen(name string) {
	dead := map[string]bool{}
	for n := range c.dead {
		dead[n] = true
	}
	c.nodes[name].meet(func(message []byte) {
		for other, h := range c.nodes {
			if other != name && !c.lost {
				c.told(h, name, message)
			}
		}
	}, func(node string) bool { return dead[node] })
}

// greet has a node tell all others everything.
func (c *circle) greet(name string) {
	for _, message := range c.nodes[name].greeting() {
		c.nodes[name].say(message)
	}
}

func (c *circle) told(h *holdings, from string, message []byte) {
	c.t.Helper()
	if len(message) > maxSaying {
		c.t.Errorf("a message of %d bytes", len(message))
	}
	if err := h.hear(from, message); err != nil {
		c.t.Error(err)
	}
}

// wants has a node want an address, and returns whether it may answer for it: "no",
// "yes", or "yes, after a probe".
func (c *circle) wants(node string, a netip.Addr) string {
	h := c.nodes[node]
	h.want([]netip.Addr{a})
	admitted := h.admit([]l2.Address{{Addr: a}}, time.Now())
	switch {
	case len(admitted) == 0:
		return "no"
	case admitted[0].Probe:
		return "yes, after a probe"
	default:
		return "yes"
	}
}

func (c *circle) expect(when, node string, a netip.Addr, want string) {
	c.t.Helper()
	if got := c.wants(node, a); got != want {
		c.t.Errorf("%s: may %s answer for %s? %s; want %s", when, node, a, got, want)
	}
}

// anew is what a node has announced anew since the last call.
func (c *circle) anew(node string) (addrs []netip.Addr) {
	h := c.nodes[node]
	for a := range h.words {
		for _, admitted := range h.admit([]l2.Address{{Addr: a}}, time.Now()) {
			if key := node + " " + a.String(); admitted.Round != c.seen[key] {
				c.seen[key] = admitted.Round
				addrs = append(addrs, a)
			}
		}
	}
	return addrs
}

func TestHoldings(t *testing.T) {
	x, y := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for name, story := range map[string]func(*testing.T, *circle){
		"a new address is probed": func(t *testing.T, c *circle) {
			c.expect("nobody had it", "n1", x, "yes, after a probe")
		},
		"a new owner waits until the old one has stopped": func(t *testing.T, c *circle) {
			c.nodes["n1"].tell([]netip.Addr{x, y})
			c.expect("n1 answers", "n2", x, "no")
			if w := c.nodes["n2"].waiting(time.Now()); w[x] != "n1" || len(w) != 1 {
				t.Errorf("n2 waits for %v", w)
			}
			c.nodes["n1"].tell([]netip.Addr{y})
			select {
			case <-c.nodes["n2"].changed:
			default:
				t.Error("n2 goes on sleeping")
			}
			c.expect("n1 has stopped", "n2", x, "yes")
			if !c.nodes["n2"].next(time.Now()).IsZero() {
				t.Error("n2 waits still")
			}
		},
		"a new owner does not wait for long": func(t *testing.T, c *circle) {
			c.nodes["n1"].tell([]netip.Addr{x})
			c.expect("n1 answers", "n2", x, "no")
			if at := c.nodes["n2"].next(time.Now()); !at.Equal(time.Now().Add(releasePatience)) {
				t.Errorf("n2 waits until %s", at)
			}
			time.Sleep(releasePatience)
			c.expect("n1 does not stop", "n2", x, "yes")
			c.nodes["n2"].tell([]netip.Addr{x})
			c.expect("both answer", "n2", x, "yes")
		},
		"who no longer wants an address waits anew when it does": func(t *testing.T, c *circle) {
			c.nodes["n1"].tell([]netip.Addr{x})
			c.expect("n1 answers", "n2", x, "no")
			time.Sleep(releasePatience / 2)
			c.nodes["n2"].want(nil)
			time.Sleep(releasePatience / 2)
			c.expect("n1 answers", "n2", x, "no")
		},
		"nobody waits for the dead": func(t *testing.T, c *circle) {
			c.nodes["n1"].tell([]netip.Addr{x})
			c.expect("n1 lives", "n2", x, "no")
			c.dead["n1"] = true
			c.listen("n2")
			select {
			case <-c.nodes["n2"].changed:
			default:
				t.Error("n2 goes on sleeping")
			}
			c.expect("n1 is dead", "n2", x, "yes")
		},
		"who comes later hears of all": func(t *testing.T, c *circle) {
			c.nodes["n1"].tell([]netip.Addr{x})
			c.join("n3", nil)
			c.expect("n3 knows nobody", "n3", x, "yes, after a probe")
			c.greet("n1")
			c.expect("n3 has met n1", "n3", x, "no")
			c.expect("n2 knew it", "n2", x, "no")
		},
		"a speaker that begins anew answers for nothing": func(t *testing.T, c *circle) {
			c.nodes["n1"].tell([]netip.Addr{x})
			c.nodes["n2"].tell([]netip.Addr{x})
			c.join("n1", []netip.Addr{x})
			c.expect("n1 has not said a word", "n2", y, "yes, after a probe")
			c.greet("n1")
			if again := c.anew("n2"); !slices.Equal(again, []netip.Addr{x}) {
				t.Errorf("n2 announces %v anew", again)
			}
			c.nodes["n2"].tell(nil)
			c.expect("n1 has begun anew", "n2", x, "yes")
			c.expect("it had the address", "n1", x, "yes")
		},
		"words that overtake one another": func(t *testing.T, c *circle) {
			var said [][]byte
			h := c.nodes["n1"]
			h.meet(func(m []byte) { said = append(said, m) }, h.dead)
			h.tell([]netip.Addr{x})
			h.tell(nil)
			h.tell([]netip.Addr{x})
			h.tell(nil)
			for _, i := range []int{3, 0, 2, 1} {
				c.told(c.nodes["n2"], "n1", said[i])
			}
			c.expect("the last word counts", "n2", x, "yes")
		},
		"what another has stopped to answer for is announced anew": func(t *testing.T, c *circle) {
			c.nodes["n1"].tell([]netip.Addr{x, y})
			// n1 is frozen. Others take over, and stop when it is back.
			c.nodes["n2"].tell([]netip.Addr{x})
			if again := c.anew("n1"); len(again) > 0 {
				t.Errorf("while n2 answers, n1 announces %v anew", again)
			}
			c.nodes["n2"].tell(nil)
			if again := c.anew("n1"); !slices.Equal(again, []netip.Addr{x}) {
				t.Errorf("n1 announces %v anew", again)
			}
			if again := c.anew("n1"); len(again) > 0 {
				t.Errorf("n1 announces %v anew once more", again)
			}
		},
		"what the dead answered for is announced anew": func(t *testing.T, c *circle) {
			c.nodes["n1"].tell([]netip.Addr{x, y})
			c.nodes["n2"].tell([]netip.Addr{y})
			c.dead["n2"] = true
			c.listen("n1")
			if again := c.anew("n1"); !slices.Equal(again, []netip.Addr{y}) {
				t.Errorf("n1 announces %v anew", again)
			}
			c.listen("n1")
			if again := c.anew("n1"); len(again) > 0 {
				t.Errorf("nobody has died, and n1 announces %v anew", again)
			}
		},
		"who was frozen announces everything anew": func(t *testing.T, c *circle) {
			c.nodes["n1"].tell([]netip.Addr{x})
			c.nodes["n2"].tell([]netip.Addr{y})
			c.nodes["n1"].renewAll()
			if again := c.anew("n1"); !slices.Equal(again, []netip.Addr{x}) {
				t.Errorf("n1 announces %v anew", again)
			}
		},
		"what is no Service's is forgotten, in time": func(t *testing.T, c *circle) {
			c.nodes["n1"].tell([]netip.Addr{x, y})
			c.nodes["n2"].keep([]*plan.Address{{Addr: y}}, time.Now())
			c.expect("it may become a Service's", "n2", x, "no")
			c.nodes["n2"].want(nil)
			time.Sleep(wordsKept + time.Second)
			for _, h := range c.nodes {
				h.keep([]*plan.Address{{Addr: y}}, time.Now())
			}
			c.expect("it became none's", "n2", x, "yes, after a probe")
			c.expect("it is a Service's", "n2", y, "no")
			c.expect("n1 answers for it still", "n1", x, "yes")
		},
		"what was another's so far is not probed": func(t *testing.T, c *circle) {
			c.lost = true
			c.nodes["n2"].keep([]*plan.Address{{Addr: x, Owner: "n1"}, {Addr: y, Owner: "n2"}}, time.Now())
			c.expect("it was n1's", "n2", x, "yes")
			c.expect("it is n2's from the first", "n2", y, "yes, after a probe")
		},
		"many addresses go in many messages": func(t *testing.T, c *circle) {
			var all []netip.Addr
			for a := y; len(all) < 100; a = a.Next() {
				all = append(all, a)
			}
			c.nodes["n1"].tell(all)
			c.expect("all were heard of", "n2", all[len(all)-1], "no")
			c.nodes["n1"].tell(nil)
			c.expect("all were heard of", "n2", all[len(all)-1], "yes")
		},
		"what makes no sense changes nothing": func(t *testing.T, c *circle) {
			c.nodes["n1"].tell([]netip.Addr{x})
			good := saying{boot: 1, count: 1, released: []netip.Addr{x}, held: []netip.Addr{y}}.messages()[0]
			for n := range good {
				if n == 17 || n == 22 {
					continue // as if an address had not been in it
				}
				if err := c.nodes["n2"].hear("n3", good[:n]); err == nil {
					t.Errorf("%d bytes of %d are understood", n, len(good))
				}
			}
			if err := c.nodes["n2"].hear("n3", append([]byte{4}, good[1:]...)); err == nil {
				t.Error("another release is understood")
			}
			if err := c.nodes["n2"].hear("n2", good); err != nil {
				t.Error(err)
			}
			c.expect("n1 answers", "n2", x, "no")
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { story(t, newCircle(t, "n1", "n2")) })
		})
	}
}

// What it costs to tell a node that is back what all others answer for is what the
// documentation says.
func TestGreetingIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/layer2.md")
	if err != nil {
		t.Fatal(err)
	}
	// Of a packet besides a message: headers of IPv4 and UDP, encryption, a checksum, and gossip's
	// envelope with a name of 16 letters.
	const besides = 28 + 30 + 5 + 18 + 16
	for _, world := range []struct{ nodes, addresses int }{{10, 1000}, {100, 10000}, {1000, 10000}} {
		h := newHoldings("n1", nil, slog.New(slog.DiscardHandler))
		var mine []netip.Addr
		for a := netip.MustParseAddr("192.0.2.0"); len(mine) < world.addresses/world.nodes; a = a.Next() {
			mine = append(mine, a)
		}
		h.tell(mine)
		bytes := 0
		for _, m := range h.greeting() {
			bytes += len(m) + besides
		}
		row := fmt.Sprintf("| %d | %d | %d |", world.nodes, world.addresses, (bytes*(world.nodes-1)+50)/100*100)
		if !strings.Contains(string(text), row) {
			t.Errorf("docs/reference/layer2.md has no row %s", row)
		}
	}
}

// A node goes on to answer for what another one shall until that one is ready, if it may be
// waited for, and for a bounded time.
func TestHoldingsKeep(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := netip.MustParseAddr("192.0.2.1")
		for name, tt := range map[string]struct {
			owner string
			story func(h *holdings, say func(saying))
			want  time.Duration
		}{
			"it is not ready":    {"n2", func(h *holdings, say func(saying)) { say(saying{}) }, keepPatience},
			"it was never heard": {"n2", func(h *holdings, say func(saying)) {}, 0},
			"nobody shall":       {"", func(h *holdings, say func(saying)) { say(saying{}) }, 0},
			"it waits":           {"n2", func(h *holdings, say func(saying)) { say(saying{wants: true, held: []netip.Addr{a}}) }, 0},
			"it answers":         {"n2", func(h *holdings, say func(saying)) { say(saying{held: []netip.Addr{a}}) }, 0},
			"another one waits":  {"n3", func(h *holdings, say func(saying)) { say(saying{wants: true, held: []netip.Addr{a}}) }, 0},
			"it is dead": {"n2", func(h *holdings, say func(saying)) {
				say(saying{})
				h.meet(h.say, func(n string) bool { return n == "n2" })
			}, 0},
			"it is only asked about": {"n2", func(h *holdings, say func(saying)) { say(saying{}); h.tell(nil) }, 0},
			"it has waited, long ago": {"n2", func(h *holdings, say func(saying)) {
				say(saying{wants: true, held: []netip.Addr{a}})
				time.Sleep(demandCounts)
			}, keepPatience},
			"it waits for another one": {"n2", func(h *holdings, say func(saying)) { say(saying{wants: true, held: []netip.Addr{a.Next()}}) }, keepPatience},
		} {
			h := newHoldings("n1", nil, slog.New(slog.DiscardHandler))
			h.tell([]netip.Addr{a})
			tt.story(h, func(s saying) {
				s.boot, s.count = 1, 1
				if err := h.hear("n2", s.messages()[0]); err != nil {
					t.Error(err)
				}
			})
			began := time.Now()
			for h.keeps(a, tt.owner, time.Now()) {
				time.Sleep(time.Until(h.next(time.Now())))
			}
			if took := time.Since(began); took != tt.want {
				t.Errorf("%s: kept for %s, want %s", name, took, tt.want)
			}
		}
	})
}
