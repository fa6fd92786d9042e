package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/speaker/rundir"
)

// An attempt is one start of an announcer and its measurements.
type attempt struct {
	*world
	options
	program announcer
	*result
	process *exec.Cmd
}

func (t *attempt) measure(ctx context.Context) error {
	if err := t.converge(ctx); err != nil {
		return fmt.Errorf("initial convergence: %w", err)
	}
	if err := t.change(ctx); err != nil {
		return fmt.Errorf("change of one route: %w", err)
	}
	for range t.resets {
		if err := t.restartRouter(ctx); err != nil {
			return fmt.Errorf("return of a router: %w", err)
		}
	}
	return t.measureMemory()
}

func (t *attempt) converge(ctx context.Context) (err error) {
	t.expect(t.routes)
	began := time.Now()
	if t.process, err = t.program.start(t.world); err != nil {
		return err
	}
	done, err := t.await(ctx, t.world.routers...)
	if err != nil {
		return err
	}
	first := t.firstOpen()
	t.Spoke = append(t.Spoke, first.Sub(began))
	t.Converged = append(t.Converged, done.Sub(first))
	t.Done = append(t.Done, done.Sub(began))
	r := t.world.routers[0]
	r.mu.Lock()
	t.Updates, t.Bytes = r.updates, r.bytes
	r.mu.Unlock()
	u, err := measure.UsageOf(t.Name, t.process.Process.Pid)
	t.CPU = append(t.CPU, u.CPU)
	if _, measures := t.program.(*fanfare); err != nil || !measures {
		return err
	}
	m, err := measure.Scrape(ctx, t.dial)
	t.FirstLoad = append(t.FirstLoad, time.Duration(
		m["fanfare_speaker_pass_phase_duration_seconds_sum"]*float64(time.Second)))
	return err
}

// dial connects to the speaker's status socket.
func (t *attempt) dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", rundir.SocketPath(filepath.Join(t.dir, "run")))
}

func (t *attempt) firstOpen() (first time.Time) {
	for _, r := range t.world.routers {
		r.mu.Lock()
		if first.IsZero() || r.opened.Before(first) {
			first = r.opened
		}
		r.mu.Unlock()
	}
	return first
}

// change repeatedly adds one route and removes it.
func (t *attempt) change(ctx context.Context) error {
	before, err := measure.UsageOf(t.Name, t.process.Process.Pid)
	if err != nil {
		return err
	}
	for range t.changes {
		for _, c := range []struct {
			on   bool
			have int
			into *measure.Sample
		}{{true, t.routes + 1, &t.Added}, {false, t.routes, &t.Removed}} {
			if err := pause(ctx, t.calm); err != nil {
				return err
			}
			t.expect(c.have)
			began := time.Now()
			if err := t.program.announce(ctx, t.routes, c.on); err != nil {
				return err
			}
			done, err := t.await(ctx, t.world.routers...)
			if err != nil {
				return err
			}
			*c.into = append(*c.into, done.Sub(began))
		}
	}
	after, err := measure.UsageOf(t.Name, t.process.Process.Pid)
	t.ChangeCPU += after.CPU - before.CPU
	return err
}

// pause separates changes, so that each finds an idle program.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// restartRouter restarts one router while the others continue. The time without a session
// depends on timers and does not count.
func (t *attempt) restartRouter(ctx context.Context) error {
	r := t.world.routers[len(t.world.routers)-1]
	r.reset()
	r.expect(t.routes)
	done, err := t.await(ctx, r)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Returned = append(t.Returned, done.Sub(r.opened))
	return nil
}

// measureSilent starts an announcer without a router and measures its memory when it has
// everything else.
func (t *attempt) measureSilent(ctx context.Context) (err error) {
	if t.process, err = t.program.start(t.world); err != nil {
		return err
	}
	err = lab.Await(ctx, patience, "all Services in the kernel", func() error {
		m, err := measure.Scrape(ctx, t.dial)
		if have := m["fanfare_proxy_vips"]; err == nil && have < float64(t.routes) {
			err = fmt.Errorf("have %.0f", have)
		}
		return err
	})
	if err != nil {
		return err
	}
	// The other announcers make changes too.
	for range t.changes {
		for _, on := range []bool{true, false} {
			if err := errors.Join(pause(ctx, t.calm), t.program.announce(ctx, t.routes, on)); err != nil {
				return err
			}
		}
	}
	return t.measureMemory()
}

func (t *attempt) measureMemory() error {
	u, err := measure.UsageOf(t.Name, t.process.Process.Pid)
	t.RSS, t.Peak = max(t.RSS, u.RSS), max(t.Peak, u.Peak)
	return err
}
