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

	"github.com/fanfare-lb/fanfare/internal/bubble"
)

// What is found out in rounds, and in which the accused is dead: of a the accused has
// answered; s was silent, l ended late. A connection was accepted before +, refused before
// -, and failed before ?.
func TestHearing(t *testing.T) {
	for _, tt := range []struct {
		rounds string
		dead   int // 0: in none
	}{
		{"ssssss", 4},
		{"sasss", 0},
		{"ssasssassa", 0},
		{"ssassss", 7},
		{"sssl", 0},
		{"ssslsss", 0},
		{"ssslssss", 8},
		{"s-s", 2},
		{"l-ls", 3}, // Whoever stood still asks once more.
		{"s-as", 0}, // Its process was replaced.
		{"s+" + strings.Repeat("s", 60), 50},
		{"s+sss?sss", 5}, // Its kernel has ended, too.
		{"s?sss", 4},
		{"s+" + strings.Repeat("s", 40) + "a+" + strings.Repeat("s", 40), 0},
		{strings.Repeat("l", 60), 50}, // Nothing is for ever.
	} {
		h, died, n := new(hearing), 0, 0
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

// A connection is tried when a packet was not answered, and now and then after that.
func TestHearingConnects(t *testing.T) {
	h := new(hearing)
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

// What becomes of a member that memberlist takes for dead, as it says more of it.
func TestAccused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newTown(t, 2)
		w.settle("node-000")
		w.await("it is there", []string{"node-000"}, is("1"))
		g := w.all["node-000"].Gossip
		d, n := delegate{g}, &memberlist.Node{Name: "node-001", Meta: head(stays, 1)}
		d.NotifyJoin(n)
		born := time.Now()
		is := func(when string, state State, since time.Time) {
			t.Helper()
			g.mu.Lock()
			defer g.mu.Unlock()
			if m := g.table["node-001"].counts(); m.State != state || !m.Since.Equal(since) {
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
		is("it was not true", Alive, born)
		if got := testutil.ToFloat64(g.metrics.alarms); got != 1 {
			t.Errorf("%v false alarms", got)
		}
		died := time.Now()
		d.NotifyLeave(n)
		pass(time.Second)
		is("it is true", Dead, died)
		rose := time.Now()
		d.NotifyJoin(n)
		is("it is back", Alive, rose)
		d.NotifyLeave(n)
		d.NotifyMsg(envelope{Message{"node-001", nil}, goodbye, 1, 1}.bytes())
		is("its farewell comes last", Left, time.Now())
		d.NotifyJoin(n)
		left := time.Now()
		d.NotifyUpdate(&memberlist.Node{Name: "node-001", Meta: head(leaves, 1)})
		d.NotifyLeave(&memberlist.Node{Name: "node-001", Meta: head(leaves, 1)})
		is("it has left, which is no matter of doubt", Left, left)
		d.NotifyJoin(&memberlist.Node{Name: "node-001", Meta: head(stays, 2)})
		d.NotifyMsg(envelope{Message{"node-001", nil}, goodbye, 1, 2}.bytes())
		is("what an earlier process says counts no more", Alive, time.Now())
		d.NotifyLeave(n)
		g.Set(w.nodes[:1])
		pass(time.Second)
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.table) != 1 {
			t.Errorf("a node that is no more: %v", g.table)
		}
	})
}

// A process that hangs for less than a second is not missed, whatever memberlist says;
// one that hangs on is, after a little more than that.
func TestHung(t *testing.T) {
	for _, nodes := range []int{2, 10} {
		bubble.Test(t, func(t *testing.T) {
			w := newTown(t, nodes)
			w.settle(w.names()...)
			w.await("all are there", w.names(), is(fmt.Sprint(nodes)))
			deaths := func() (n float64) {
				for _, name := range w.names("node-001") {
					n += testutil.ToFloat64(w.all[name].metrics.deaths)
				}
				return n
			}
			alarms := func() (n float64) {
				for _, name := range w.names("node-001") {
					n += testutil.ToFloat64(w.all[name].metrics.alarms)
				}
				return n
			}
			for range 5 {
				w.hub.hang(w.addr("node-001"), true)
				<-time.After(900 * time.Millisecond)
				w.hub.hang(w.addr("node-001"), false)
				<-time.After(2 * time.Second)
				w.await("nobody else is missed, either", w.names("node-001"), is(fmt.Sprint(nodes)))
			}
			if got := deaths(); got != 0 || alarms() == 0 {
				t.Errorf("%v deaths, and %v false alarms", got, alarms())
			}
			w.hub.hang(w.addr("node-001"), true)
			took := w.await("it hangs on", w.names("node-001"), is(fmt.Sprintf("%d node-001 dead", nodes-1)))
			if took < time.Second || took > 2*time.Second {
				t.Errorf("a process that hangs is dead after %s", took)
			}
			w.hub.hang(w.addr("node-001"), false)
			w.await("it goes on", w.names(), is(fmt.Sprint(nodes)))
			w.hub.hang(w.addr("node-001"), true)
			<-time.After(600 * time.Millisecond)
			w.hub.off(w.addr("node-001"), true)
			if took := w.await("its power ends meanwhile", w.names("node-001"), is(fmt.Sprintf("%d node-001 dead", nodes-1))); took > 500*time.Millisecond {
				t.Errorf("the end of its power was noticed %s later", took)
			}
		})
	}
}

// A false witness is not believed, as long as the accused answers.
func TestFalseWitness(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newTown(t, 5)
		w.settle(w.names()...)
		w.await("all are there", w.names(), is("5"))
		others := w.names("node-001")
		for _, name := range others {
			delegate{w.all[name].Gossip}.NotifyLeave(&memberlist.Node{Name: "node-001"})
		}
		for range 1000 {
			<-time.After(5 * time.Millisecond)
			for _, name := range others {
				if got := states(w.all[name].View()); got != "5" {
					t.Fatalf("%s sees %s", name, got)
				}
			}
		}
		w.hub.off(w.addr("node-001"), true)
		<-time.After(500 * time.Millisecond)
		w.await("now it is true", others, is("4 node-001 dead"))
		for _, name := range others {
			m := w.all[name].View().Members[1]
			if ago := time.Since(m.Since); ago > time.Second {
				t.Errorf("%s says that it was last heard of %s ago", name, ago)
			}
		}
	})
}
