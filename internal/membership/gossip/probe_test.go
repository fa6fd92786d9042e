package gossip

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// Each letter is a round: a has an ack, s none, l none and ended late. Before the next round a
// connection is accepted (+), refused (-) or times out (?).
func TestProbeRounds(t *testing.T) {
	for _, tt := range []struct {
		rounds string
		dead   int // in which round; 0: never
	}{
		{"ssssss", 4},
		{"sasss", 0},
		{"ssasssassa", 0},
		{"ssassss", 7},
		{"sssl", 0},
		{"ssslsss", 0},
		{"ssslssss", 8},
		{"s-s", 2},
		{"l-ls", 3}, // A late round does not count.
		{"s-as", 0}, // Its process was replaced.
		{"s+" + strings.Repeat("s", 60), 50},
		{"s+sss?sss", 5}, // Its kernel is down, too.
		{"s?sss", 4},
		{"s+" + strings.Repeat("s", 40) + "a+" + strings.Repeat("s", 40), 0},
		{strings.Repeat("l", 60), 50}, // There is a limit.
	} {
		h, died, n := new(probe), 0, 0
		for _, r := range tt.rounds {
			switch r {
			case '+':
				h.connected(nil)
				continue
			case '-':
				h.connected(&net.OpError{Err: syscall.ECONNREFUSED})
				continue
			case '?':
				h.connected(errors.New("no answer"))
				continue
			}
			n++
			h.begin(uint64(n))
			h.answered = r == 'a'
			if h.end(r == 'l') {
				died = n
				break
			}
		}
		if died != tt.dead {
			t.Errorf("%s: dead in round %d, want %d", tt.rounds, died, tt.dead)
		}
	}
}

// The first connection follows the first ping without an ack, the others each ten rounds.
func TestProbeConnects(t *testing.T) {
	h := new(probe)
	var tried []int
	for n := 1; n <= 25; n++ {
		if h.begin(1) {
			tried = append(tried, n)
		}
		h.connected(nil)
		h.end(false)
	}
	if got := fmt.Sprint(tried); got != "[2 12 22]" {
		t.Errorf("tried in rounds %s", got)
	}
}

// A suspect is alive until the probe ends, and what memberlist reports meanwhile counts.
func TestSuspectBecomesDeadOrAlive(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 2)
		c.startAll("node-000")
		c.await("it is alive", []string{"node-000"}, sees("1"))
		g := c.running["node-000"].Gossip
		d, n := delegate{g}, &memberlist.Node{Name: "node-001", Meta: metaHeader(metaStaying, 1)}
		d.NotifyJoin(n)
		born := time.Now()
		is := func(when string, state State, since time.Time) {
			t.Helper()
			g.mu.Lock()
			defer g.mu.Unlock()
			if m := g.members["node-001"].effective(); m.State != state || !m.Since.Equal(since) {
				t.Errorf("%s: %s since %s, want %s since %s", when, m.State, m.Since, state, since)
			}
		}
		pass := func(d time.Duration) { <-time.After(d) }
		is("at first", Alive, born)
		d.NotifyLeave(n)
		pass(round + round/2)
		is("a moment later", Alive, born)
		d.NotifyJoin(n)
		pass(time.Second)
		is("refuted", Alive, born)
		if got := testutil.ToFloat64(g.metrics.falsePositives); got != 1 {
			t.Errorf("%v false positives", got)
		}
		died := time.Now()
		d.NotifyLeave(n)
		pass(time.Second)
		is("not refuted", Dead, died)
		rose := time.Now()
		d.NotifyJoin(n)
		is("it is back", Alive, rose)
		d.NotifyLeave(n)
		d.NotifyMsg(envelope{Message{"node-001", nil}, kindLeave, 1, 1}.bytes())
		is("its leave message comes last", Left, time.Now())
		d.NotifyJoin(n)
		left := time.Now()
		d.NotifyUpdate(&memberlist.Node{Name: "node-001", Meta: metaHeader(metaLeaving, 1)})
		d.NotifyLeave(&memberlist.Node{Name: "node-001", Meta: metaHeader(metaLeaving, 1)})
		is("it has left by its metadata", Left, left)
		d.NotifyJoin(&memberlist.Node{Name: "node-001", Meta: metaHeader(metaStaying, 2)})
		d.NotifyMsg(envelope{Message{"node-001", nil}, kindLeave, 1, 2}.bytes())
		is("a leave message of an earlier process is ignored", Alive, time.Now())
		d.NotifyLeave(n)
		g.Set(c.nodes[:1])
		pass(time.Second)
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.members) != 1 {
			t.Errorf("a deleted node is kept: %v", g.members)
		}
	})
}

// A process that hangs for less than a second is never dead; one that hangs longer is, a
// little later.
func TestHungProcess(t *testing.T) {
	for _, nodes := range []int{2, 10} {
		bubble.Test(t, func(t *testing.T) {
			c := newTestCluster(t, nodes)
			c.startAll(c.names()...)
			c.await("all are alive", c.names(), sees(fmt.Sprint(nodes)))
			deaths := func() (n float64) {
				for _, name := range c.names("node-001") {
					n += testutil.ToFloat64(c.running[name].metrics.deaths)
				}
				return n
			}
			falsePositives := func() (n float64) {
				for _, name := range c.names("node-001") {
					n += testutil.ToFloat64(c.running[name].metrics.falsePositives)
				}
				return n
			}
			for range 5 {
				c.network.suspend(c.addr("node-001"), true)
				<-time.After(900 * time.Millisecond)
				c.network.suspend(c.addr("node-001"), false)
				<-time.After(2 * time.Second)
				c.await("all are alive after it hung", c.names("node-001"), sees(fmt.Sprint(nodes)))
			}
			if got := deaths(); got != 0 || falsePositives() == 0 {
				t.Errorf("%v deaths, and %v false positives", got, falsePositives())
			}
			c.network.suspend(c.addr("node-001"), true)
			took := c.await("it hangs longer", c.names("node-001"), sees(fmt.Sprintf("%d node-001 dead", nodes-1)))
			if took < time.Second || took > 2*time.Second {
				t.Errorf("a process that hangs is dead after %s", took)
			}
			c.network.suspend(c.addr("node-001"), false)
			c.await("it continues", c.names(), sees(fmt.Sprint(nodes)))
			c.network.suspend(c.addr("node-001"), true)
			<-time.After(600 * time.Millisecond)
			c.network.partition(c.addr("node-001"), true)
			if took := c.await("its node loses power meanwhile", c.names("node-001"),
				sees(fmt.Sprintf("%d node-001 dead", nodes-1))); took > 500*time.Millisecond {
				t.Errorf("the power loss was detected %s later", took)
			}
		})
	}
}

// A false report of a death has no effect while the suspect answers.
func TestFalseSuspicion(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 5)
		c.startAll(c.names()...)
		c.await("all are alive", c.names(), sees("5"))
		others := c.names("node-001")
		for _, name := range others {
			delegate{c.running[name].Gossip}.NotifyLeave(&memberlist.Node{Name: "node-001"})
		}
		for range 1000 {
			<-time.After(5 * time.Millisecond)
			for _, name := range others {
				if got := states(c.running[name].View()); got != "5" {
					t.Fatalf("%s sees %s", name, got)
				}
			}
		}
		c.network.partition(c.addr("node-001"), true)
		<-time.After(500 * time.Millisecond)
		c.await("now it is dead", others, sees("4 node-001 dead"))
		for _, name := range others {
			m := c.running[name].View().Members[1]
			if ago := time.Since(m.Since); ago > time.Second {
				t.Errorf("%s: it was last alive %s ago", name, ago)
			}
		}
	})
}
