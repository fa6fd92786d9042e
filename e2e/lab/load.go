package lab

import (
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
	// Rate of new connections in the scenario, a second.
	Rate = 200
	// slow is what counts as slow in a report: a SYN that was lost once takes
	// more than a second.
	slow = 500 * time.Millisecond
	// openAtOnce bounds the connections that wait for an answer: more than are begun
	// in Patience.
	maxOpen = 12 * Rate
	// modest is how many wait in a load that asks for no more than is answered.
	limited = 40
	// detailed is how many losses of a report are listed in full.
	detailed = 10
)

// A Load opens new connections at a steady rate, each for one request.
type Load struct {
	client  *Client
	to      netip.AddrPort
	slots   chan struct{} // for waiting requests
	limited bool
	ctx     context.Context
	stop    context.CancelFunc
	done    chan struct{}
	lost    atomic.Int64

	mu     sync.Mutex
	report Report
}

// A Report is what became of a load.
type Report struct {
	Began   time.Time
	Sent    int
	Lost    []Loss // in the order of their ends
	Slow    int    // answered, but late
	Longest time.Duration
	Pods    map[string]int // who answered how many

	answers []answerTime // in the order of their ends
}

type answerTime struct {
	begin, end time.Time
	pod        string
}

// A Loss is a request that got no whole answer.
type Loss struct {
	Begin, End time.Time
	Err        error
}

// StartLoad begins to send.
func (c *Client) StartLoad(ctx context.Context, to netip.AddrPort) *Load {
	return c.startLoad(ctx, &Load{to: to, slots: make(chan struct{}, maxOpen)})
}

// StartModestLoad begins to send, as many as StartLoad where that many are answered. On a
// machine so busy that pods fall behind it leaves some out instead of having them fall
// behind for good, and lose requests that no change has lost.
func (c *Client) StartLimitedLoad(ctx context.Context, to netip.AddrPort) *Load {
	return c.startLoad(ctx, &Load{to: to, slots: make(chan struct{}, limited), limited: true})
}

func (c *Client) startLoad(ctx context.Context, l *Load) *Load {
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
	for i := 0; pause(l.ctx, time.Until(begin.Add(time.Duration(i)*time.Second/Rate))) == nil; i++ {
		select {
		case l.slots <- struct{}{}:
			open.Go(func() { l.request(ctx); <-l.slots })
		default:
			if l.limited {
				continue
			}
			now := time.Now()
			l.count(now, now, Answer{}, errors.New("too many requests wait for an answer"))
		}
	}
	open.Wait()
}

func (l *Load) request(ctx context.Context) {
	begin := time.Now()
	a, err := l.client.Get(ctx, l.client.ports.next(l.to.Addr()), l.to)
	end := time.Now()
	if err != nil && l.lost.Add(1) <= detailed {
		err = l.client.withConntrack(ctx, err, l.to)
	}
	l.count(begin, end, a, err)
}

func (l *Load) count(begin, end time.Time, a Answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Sent++
	if err != nil {
		l.report.Lost = append(l.report.Lost, Loss{begin, end, err})
		return
	}
	l.report.Pods[a.Pod]++
	l.report.answers = append(l.report.answers, answerTime{begin, end, a.Pod})
	l.report.Longest = max(l.report.Longest, end.Sub(begin))
	if end.Sub(begin) > slow {
		l.report.Slow++
	}
}

// AwaitAnswered waits until a request is answered that began after a time.
func (l *Load) AwaitAnswered(ctx context.Context, after time.Time) error {
	return Await(ctx, Settle, "an answer", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if n := len(l.report.answers); n == 0 || !l.report.answers[n-1].begin.After(after) {
			return fmt.Errorf("%d were answered so far", n)
		}
		return nil
	})
}

// FirstAfter is when the first answer was there after a time; zero when there was none.
func (r Report) FirstAnswerAfter(t time.Time) time.Time {
	i := slices.IndexFunc(r.answers, func(a answerTime) bool { return a.end.After(t) })
	if i < 0 {
		return time.Time{}
	}
	return r.answers[i].end
}

// FirstBy is when the first answer of a pod was there after a time; zero when there was none.
func (r Report) FirstAnswerOf(pod string, after time.Time) time.Time {
	i := slices.IndexFunc(r.answers, func(a answerTime) bool { return a.pod == pod && a.end.After(after) })
	if i < 0 {
		return time.Time{}
	}
	return r.answers[i].end
}

// LastHurt is when the last request was begun that was lost, or answered late because a
// packet was; zero when there was none.
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

// AwaitPod waits until a pod has answered a request that began after a time.
func (l *Load) AwaitPod(ctx context.Context, pod string, after time.Time) error {
	return Await(ctx, Settle, "an answer of "+pod, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, a := range slices.Backward(l.report.answers) {
			switch {
			case a.end.Before(after):
				return fmt.Errorf("none of %d", len(l.report.answers))
			case a.pod == pod && a.begin.After(after):
				return nil
			}
		}
		return errors.New("no pod has answered")
	})
}

// Cut counts the requests that were lost because they were under way at one of the times
// at which packets began to go to another node.
func (r Report) Interrupted(changes []time.Time) int {
	interrupted, _ := r.splitInterrupted(changes)
	return len(interrupted)
}

// Stop ends the load, and waits for requests in flight.
func (l *Load) Stop() Report {
	l.stop()
	<-l.done
	slices.SortStableFunc(l.report.Lost, func(a, b Loss) int { return a.End.Compare(b.End) }) // tracing some took time
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

// split parts what was lost into what was under way when a route changed, and
// the rest. A router that gets another set of nodes moves connections from one to
// another, and a node that is sent the middle of a connection that it has never
// seen resets it. No order of events at the nodes can prevent that.
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

// Losses lists what was lost, when, and why; times are relative to since.
func (r Report) Losses(since time.Time) string {
	var b strings.Builder
	for i, l := range r.Lost {
		if i == detailed {
			fmt.Fprintf(&b, "and %d more\n", len(r.Lost)-i)
			break
		}
		fmt.Fprintf(&b, "lost: begun %+.3f s, ended %+.3f s: %v\n", l.Begin.Sub(since).Seconds(), l.End.Sub(since).Seconds(), l.Err)
	}
	return b.String()
}
