package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// Rate is the number of new connections per second in the scenario.
	Rate = 200
	// slow is the duration from which a report counts an answer as slow: one lost SYN delays a
	// connection by more than a second.
	slow = 500 * time.Millisecond
	// maxOpen bounds the connections that wait for an answer. It is more than are opened
	// within Patience.
	maxOpen = 12 * Rate
	// limited bounds the waiting connections of a limited load.
	limited = 40
	// detailed is the number of losses that a report lists in full.
	detailed = 10
)

// A Load opens new connections at a steady rate, one request each. UDP sockets count as connections.
type Load struct {
	client  *Client
	to      netip.AddrPort
	slots   chan struct{} // one slot for each waiting request
	limited bool
	rate    int // requests per second
	ask     func(ctx context.Context, from, to netip.AddrPort) (Answer, error)
	ctx     context.Context
	stop    context.CancelFunc
	done    chan struct{}
	lost    atomic.Int64

	mu     sync.Mutex
	report Report
}

// A Report is the result of a load.
type Report struct {
	Began   time.Time
	Sent    int
	Lost    []Loss // in the order in which they ended
	Slow    int    // answered, but slowly
	Longest time.Duration
	Pods    map[string]int // answers by pod

	answers []answerTime // in the order in which they ended
}

type answerTime struct {
	begin, end time.Time
	pod        string
}

// A Loss is a request without a complete answer.
type Loss struct {
	Begin, End time.Time
	From       netip.AddrPort // invalid if the kernel chose it
	Err        error
}

// StartLoad starts a load.
func (c *Client) StartLoad(ctx context.Context, to netip.AddrPort) *Load {
	return c.startLoad(ctx, &Load{to: to, slots: make(chan struct{}, maxOpen)})
}

// StartLimitedLoad starts a load that skips requests while too many wait for an answer. On
// a machine so busy that pods fall behind, requests would otherwise pile up and be lost
// without any fault of the network.
func (c *Client) StartLimitedLoad(ctx context.Context, to netip.AddrPort) *Load {
	return c.startLoad(ctx, &Load{to: to, slots: make(chan struct{}, limited), limited: true})
}

// StartUDPLoad starts a load of one datagram from each port. Nothing repeats a lost one, so the
// client waits for an answer no longer than for a connection.
func (c *Client) StartUDPLoad(ctx context.Context, to netip.AddrPort) *Load {
	return c.startLoad(ctx, &Load{to: to, slots: make(chan struct{}, maxOpen),
		ask: func(ctx context.Context, from, to netip.AddrPort) (Answer, error) {
			ctx, cancel := context.WithTimeout(ctx, connecting)
			defer cancel()
			return c.AskUDP(ctx, from, to)
		}})
}

func (c *Client) startLoad(ctx context.Context, l *Load) *Load {
	if l.ask == nil {
		l.ask = c.Get
	}
	l.rate = cmp.Or(l.rate, Rate)
	l.client, l.done, l.report.Pods = c, make(chan struct{}), map[string]int{}
	l.ctx, l.stop = context.WithCancel(ctx)
	go l.run(context.WithoutCancel(ctx))
	return l
}

func (l *Load) run(ctx context.Context) {
	defer close(l.done)
	var open sync.WaitGroup
	begin := time.Now()
	l.mu.Lock()
	l.report.Began = begin
	l.mu.Unlock()
	for i := 0; pause(l.ctx, time.Until(begin.Add(time.Duration(i)*time.Second/time.Duration(l.rate)))) == nil; i++ {
		select {
		case l.slots <- struct{}{}:
			open.Go(func() { l.request(ctx); <-l.slots })
		default:
			if l.limited {
				continue
			}
			now := time.Now()
			l.count(now, now, netip.AddrPort{}, Answer{}, errors.New("too many requests wait for an answer"))
		}
	}
	open.Wait()
}

func (l *Load) request(ctx context.Context) {
	begin := time.Now()
	from := l.client.ports.next(l.to.Addr())
	a, err := l.ask(ctx, from, l.to)
	end := time.Now()
	if err != nil && l.lost.Add(1) <= detailed {
		err = l.client.withConntrack(ctx, err, l.to)
	}
	l.count(begin, end, from, a, err)
}

func (l *Load) count(begin, end time.Time, from netip.AddrPort, a Answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Sent++
	if err != nil {
		l.report.Lost = append(l.report.Lost, Loss{begin, end, from, err})
		return
	}
	l.report.Pods[a.Pod]++
	l.report.answers = append(l.report.answers, answerTime{begin, end, a.Pod})
	l.report.Longest = max(l.report.Longest, end.Sub(begin))
	if end.Sub(begin) > slow {
		l.report.Slow++
	}
}

// AwaitAnswered waits for the answer to a request that began after the given time.
func (l *Load) AwaitAnswered(ctx context.Context, after time.Time) error {
	return Await(ctx, Settle, "an answer", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if n := len(l.report.answers); n == 0 || !l.report.answers[n-1].begin.After(after) {
			return fmt.Errorf("%d answers so far, none to such a request", n)
		}
		return nil
	})
}

// FirstAnswerAfter returns the time of the first answer after the given time; zero if there
// was none.
func (r Report) FirstAnswerAfter(t time.Time) time.Time {
	i := slices.IndexFunc(r.answers, func(a answerTime) bool { return a.end.After(t) })
	if i < 0 {
		return time.Time{}
	}
	return r.answers[i].end
}

// FirstAnswerOf returns the time of a pod's first answer after the given time; zero if
// there was none.
func (r Report) FirstAnswerOf(pod string, after time.Time) time.Time {
	i := slices.IndexFunc(r.answers, func(a answerTime) bool { return a.pod == pod && a.end.After(after) })
	if i < 0 {
		return time.Time{}
	}
	return r.answers[i].end
}

// LastAffected returns the start of the last request that was lost, or slow because a
// packet was lost; zero if there was none.
func (r Report) LastAffected() (last time.Time) {
	for _, l := range r.Lost {
		last = latest(last, l.Begin)
	}
	for _, a := range r.answers {
		if a.end.Sub(a.begin) > slow {
			last = latest(last, a.begin)
		}
	}
	return last
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// AwaitPod waits until a pod has answered a request that began after the given time.
func (l *Load) AwaitPod(ctx context.Context, pod string, after time.Time) error {
	return Await(ctx, Settle, "an answer of "+pod, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, a := range slices.Backward(l.report.answers) {
			switch {
			case a.end.Before(after):
				return fmt.Errorf("none of %d answers", len(l.report.answers))
			case a.pod == pod && a.begin.After(after):
				return nil
			}
		}
		return errors.New("no pod has answered")
	})
}

// Interrupted counts the requests that were lost because they were in flight when packets
// began to go to another node.
func (r Report) Interrupted(changes []time.Time) int {
	interrupted, _ := r.splitInterrupted(changes)
	return len(interrupted)
}

// Stop ends the load and waits for the requests in flight.
func (l *Load) Stop() Report {
	l.stop()
	<-l.done
	// collecting conntrack entries delays some
	slices.SortStableFunc(l.report.Lost, func(a, b Loss) int { return a.End.Compare(b.End) })
	return l.report
}

func (r Report) String() string {
	var pods []string
	for _, p := range slices.Sorted(maps.Keys(r.Pods)) {
		pods = append(pods, fmt.Sprintf("%s %d", p, r.Pods[p]))
	}
	return fmt.Sprintf("%d requests, %d lost, %d slow, longest %s; answered by %s",
		r.Sent, len(r.Lost), r.Slow, r.Longest.Round(100*time.Microsecond), strings.Join(pods, ", "))
}

// splitInterrupted separates the losses that a route change explains from the rest. When
// its next hops change, a router moves connections to other nodes, and a node resets a
// connection that it receives in the middle. No order of updates on the nodes can prevent
// that.
func (r Report) splitInterrupted(changes []time.Time) (interrupted, rest []Loss) {
	for _, l := range r.Lost {
		under := slices.ContainsFunc(changes, func(c time.Time) bool { return l.Begin.Before(c) && c.Before(l.End) })
		if under && errors.Is(l.Err, syscall.ECONNRESET) {
			interrupted = append(interrupted, l)
		} else {
			rest = append(rest, l)
		}
	}
	return interrupted, rest
}

// Losses lists the lost requests with their errors; times are relative to since.
func (r Report) Losses(since time.Time) string {
	var b strings.Builder
	for i, l := range r.Lost {
		if i == detailed {
			fmt.Fprintf(&b, "and %d more\n", len(r.Lost)-i)
			break
		}
		fmt.Fprintf(&b, "lost: began %+.3f s, ended %+.3f s: %v\n", l.Begin.Sub(since).Seconds(),
			l.End.Sub(since).Seconds(), l.Err)
	}
	return b.String()
}
