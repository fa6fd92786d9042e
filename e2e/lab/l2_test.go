package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// laboratoryL2 builds a layer 2 lab. No other lab of this package runs at the same time,
// because the measured times are short.
func laboratoryL2(t *testing.T) *Lab {
	t.Helper()
	with := options(t).ForL2("../containerlab")
	await(t, built())
	with.ID += "l"
	l, err := Up(t.Context(), with)
	await(t, err)
	t.Cleanup(func() { await(t, l.Down()) })
	await(t, l.StartL2Speakers(t.Context(), NodeNames...))
	return l
}

// serveL2 creates Services for the duration of a test and returns the addresses of the
// first.
func serveL2(t *testing.T, l *Lab, services ...Service) (vips []netip.Addr) {
	t.Helper()
	svc := services[0]
	await(t, l.Cluster.Put(services...))
	t.Cleanup(func() {
		await(t, l.Cluster.Delete(svc.Name))
		for _, vip := range vips {
			await(t, Await(context.WithoutCancel(t.Context()), Settle, "no node to announce "+vip.String(),
				func() error {
					owners, err := l.Owners(context.WithoutCancel(t.Context()), vip)
					if err == nil && len(owners) > 0 {
						err = errOwned(owners)
					}
					return err
				}))
		}
	})
	for _, f := range svc.families() {
		vip, err := l.AwaitAddress(t.Context(), "shop/"+svc.Name, f == corev1.IPv6Protocol)
		await(t, err)
		vips = append(vips, vip)
	}
	return vips
}

type errOwned []string

func (e errOwned) Error() string { return "announced by " + strings.Join(e, ", ") }

// pinnedTo returns the Service with an annotation that names the announcing node.
func pinnedTo(s Service, node string) Service {
	s.Annotations = map[string]string{"fanfare.io/l2-node": node}
	return s
}

var bothFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}

// expectOnlyInterrupted sends requests while do runs and checks that none is lost, except
// those in flight when the host began to send to another node, which does not know their
// connections.
func expectOnlyInterrupted(t *testing.T, l *Lab, vips []netip.Addr, do func()) {
	t.Helper()
	moves, err := l.WatchNeighbours()
	await(t, err)
	defer moves.Close()
	var loads []*Load
	for _, vip := range vips {
		loads = append(loads, l.Host().StartLimitedLoad(t.Context(), port(vip, 80)))
	}
	do()
	for i, load := range loads {
		r := load.Stop()
		changes, err := moves.Of(vips[i])
		await(t, err)
		rest := unexplained(r, changes)
		t.Logf("%s: moved %d times; %s; in flight: %d", vips[i], len(changes), r, len(r.Lost)-len(rest))
		if len(rest) > 0 || r.Sent == 0 {
			t.Errorf("%s: moved at %v; %s\n%s", vips[i], changes, r, Report{Lost: rest}.Losses(r.Began))
		}
	}
}

// expectNoLossL2 sends requests to all addresses while do runs, with some long-lived
// connections, and checks that no request is lost and that the long-lived connections work
// afterwards.
func expectNoLossL2(t *testing.T, l *Lab, vips []netip.Addr, do func()) {
	t.Helper()
	moves, err := l.WatchNeighbours()
	await(t, err)
	defer moves.Close()
	var loads []*Load
	var open []*Flows
	for _, vip := range vips {
		f, err := l.Host().OpenFlows(t.Context(), 3, port(vip, 7))
		await(t, err)
		defer f.Close()
		loads, open = append(loads, l.Host().StartLimitedLoad(t.Context(), port(vip, 80))), append(open, f)
	}
	do()
	for i, load := range loads {
		lines := open[i].AwaitLines(t.Context(), 2)
		r := load.Stop()
		changes, err := moves.Of(vips[i])
		await(t, errors.Join(lines, err))
		t.Logf("%s: moved %d times; %s", vips[i], len(changes), r)
		if len(r.Lost) > 0 || r.Sent == 0 {
			t.Errorf("%s: moved at %v; %s\n%s", vips[i], changes, r, r.Losses(r.Began))
		}
		for _, flow := range open[i].All {
			if err := flow.Err(); err != nil {
				t.Errorf("%s: moved at %v: a connection to %s ended after %d lines: %v", vips[i], changes, flow.Pod,
					flow.Exchanged(), err)
			}
		}
	}
}

// unexplained returns the losses that no move of the host explains. A busy kernel may
// report a changed entry late. A connection without a reset times out: the other node has a
// conntrack entry of an earlier connection from the same port and takes the packets for
// that one's.
func unexplained(r Report, changes []time.Time) []Loss {
	const (
		late = 250 * time.Millisecond
		busy = 2 * time.Second // as long as a request may have been in flight
	)
	return slices.DeleteFunc(slices.Clone(r.Lost), func(l Loss) bool {
		reset, silent := errors.Is(l.Err, syscall.ECONNRESET), errors.Is(l.Err, os.ErrDeadlineExceeded)
		return slices.ContainsFunc(changes, func(c time.Time) bool {
			inFlight := l.Begin.Before(c) && l.End.After(c.Add(-late))
			return inFlight && (reset || silent && c.Sub(l.Begin) < busy)
		})
	})
}

func TestUnexplainedLosses(t *testing.T) {
	began := time.Now()
	at := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	for _, c := range []struct {
		name       string
		begin, end float64
		err        error
		want       int
	}{
		{"reset at the move", 9.9, 10.1, syscall.ECONNRESET, 0},
		{"reset before it", 9, 9.5, syscall.ECONNRESET, 1},
		{"reset after it", 10.1, 10.2, syscall.ECONNRESET, 1},
		{"timeout since the move", 9.9, 19.9, os.ErrDeadlineExceeded, 0},
		{"timeout since long before it", 5, 15, os.ErrDeadlineExceeded, 1},
		{"timeout since after it", 10.1, 20.1, os.ErrDeadlineExceeded, 1},
		{"no connection", 9.9, 12.9, context.DeadlineExceeded, 1},
	} {
		lost := Loss{Begin: at(c.begin), End: at(c.end), Err: fmt.Errorf("receive: %w", c.err)}
		if got := unexplained(Report{Lost: []Loss{lost}}, []time.Time{at(10)}); len(got) != c.want {
			t.Errorf("%s: %v; want %d", c.name, got, c.want)
		}
	}
}

// TestL2 uses one lab for a sequence of events, with addresses of both families. The load
// goes to one address at a time because of busy machines. What happens when a speaker is
// killed, frozen or upgraded is in e2e/matrix.
func TestL2(t *testing.T) {
	l := laboratoryL2(t)
	limitPorts(t, l.Host())
	web := Service{Name: "web", Families: bothFamilies, Endpoints: At("p11", "p21", "p31")}

	t.Run("one node answers", func(t *testing.T) {
		for _, vip := range serveL2(t, l, web) {
			owner, err := l.AwaitOwner(t.Context(), vip)
			await(t, err)
			if _, err := l.Host().Get(t.Context(), netip.AddrPort{}, port(vip, 80)); err != nil {
				t.Errorf("%s: %v", vip, err)
			}
			if _, err := l.AwaitOwner(t.Context(), vip, owner); err != nil {
				t.Error(err)
			}
			// Kernels probe a neighbour by unicast.
			await(t, l.ProbeNeighbour(t.Context(), vip))
			// The client behind the router depends on the router's neighbour table.
			if vip.Is4() {
				if _, err := l.Client.Get(t.Context(), netip.AddrPortFrom(ClientAddr, 0), port(vip, 80)); err != nil {
					t.Errorf("%s via the router: %v", vip, err)
				}
			}
			text, err := l.Speaker(owner).StatusText(t.Context())
			await(t, err)
			if !strings.Contains(text, "yes, on eth1") || strings.Contains(text, "BGPPeer") {
				t.Errorf("%s shows:\n%s", owner, text)
			}
		}
	})

	t.Run("Local", func(t *testing.T) {
		svc := Service{Name: "local", Policy: localTraffic, Families: bothFamilies, Endpoints: At("p21")}
		vips := serveL2(t, l, svc)
		expectAnswer := func(vip netip.Addr, pod string) {
			t.Helper()
			_, err := l.AwaitOwner(t.Context(), vip, NodeOf(pod))
			await(t, err)
			from := netip.AddrPortFrom(netip.MustParseAddr("198.51.100.50"), 0)
			if vip.Is6() {
				from = netip.AddrPortFrom(netip.MustParseAddr("2001:db8:51::50"), 0)
			}
			a, err := l.Host().Get(t.Context(), from, port(vip, 80))
			if err != nil || a.Pod != pod || a.Saw.Addr() != from.Addr() {
				t.Errorf("%s: %+v, %v", vip, a, err)
			}
		}
		// The addresses follow the pods.
		for _, pod := range []string{"p21", "p31"} {
			svc.Endpoints = At(pod)
			await(t, l.Cluster.Put(svc))
			for _, vip := range vips {
				expectAnswer(vip, pod)
			}
		}
	})

	t.Run("planned move", func(t *testing.T) {
		vips := serveL2(t, l, pinnedTo(web, "n1"))
		for _, vip := range vips {
			_, err := l.AwaitOwner(t.Context(), vip, "n1")
			await(t, err)
		}
		expectNoLossL2(t, l, vips, func() {
			for move := range 20 {
				to := []string{"n2", "n1"}[move%2]
				await(t, l.Cluster.Put(pinnedTo(web, to)))
				awaitOwners(t, l, vips, to)
			}
		})
		text, err := l.Speaker("n1").StatusText(t.Context())
		await(t, err)
		if !strings.Contains(text, ", and redirects earlier connections to n2") {
			t.Errorf("n1 shows:\n%s", text)
		}
	})

	t.Run("planned moves over three nodes", func(t *testing.T) {
		vips := serveL2(t, l, pinnedTo(web, "n1"))
		awaitOwners(t, l, vips, "n1")
		for _, to := range []string{"n2", "n3", "n1"} {
			expectNoLossL2(t, l, vips, func() {
				await(t, l.Cluster.Put(pinnedTo(web, to)))
				awaitOwners(t, l, vips, to)
			})
		}
	})

	t.Run("power failure and reboot", func(t *testing.T) {
		vips := serveL2(t, l, pinnedTo(web, "n1"))
		awaitOwners(t, l, vips, "n1")
		loads := []*Load{l.Host().StartLimitedLoad(t.Context(), port(vips[0], 80))}
		began := time.Now()
		await(t, l.PowerOff(t.Context(), "n1"))
		// Its pods are unreachable and must be left out.
		awaitOwners(t, l, vips, "n2", "n3")
		takenOver := time.Now()
		for i, load := range loads {
			await(t, load.AwaitAnswered(t.Context(), takenOver))
			r := load.Stop()
			t.Logf("%s: taken over within %s; %s", vips[i], takenOver.Sub(began).Round(time.Millisecond), r)
			for _, lost := range r.Lost {
				// A connection that began before that may have gone to the dead node.
				if lost.Begin.After(takenOver) {
					t.Errorf("%s: a request was lost %s after another node had taken over: %v", vips[i],
						lost.Begin.Sub(takenOver), lost.Err)
				}
			}
		}
		expectOnlyInterrupted(t, l, vips[1:], func() {
			await(t, l.Reboot(t.Context(), "n1"))
			awaitOwners(t, l, vips, "n1")
		})
	})

	t.Run("link down while the speaker runs", func(t *testing.T) {
		// Without the link both sides announce the address. After its return only the right node
		// continues.
		vips := serveL2(t, l, pinnedTo(web, "n2"))
		awaitOwners(t, l, vips, "n2")
		await(t, l.Disconnect(t.Context(), "n2"))
		await(t, awaitTakeover(t, l, vips, "n1", "n3"))
		await(t, l.Reconnect(t.Context(), "n2"))
		awaitOwners(t, l, vips, "n2")
		for _, vip := range vips {
			if _, err := l.Host().Get(t.Context(), netip.AddrPort{}, port(vip, 80)); err != nil {
				t.Errorf("%s: %v", vip, err)
			}
		}
	})

	t.Run("shared", func(t *testing.T) {
		share := func(name string, number uint16) Service {
			s := pinnedTo(Service{Name: name, Endpoints: At("p11"), Port: number,
				Ask: []netip.Addr{netip.MustParseAddr("198.51.100.249")}}, "n3")
			s.Annotations["fanfare.io/allow-shared-ip"] = "both"
			return s
		}
		vip := serveL2(t, l, share("one", 80), share("two", 81))[0]
		awaitOwners(t, l, []netip.Addr{vip}, "n3")
		for _, number := range []uint16{80, 81} {
			await(t, Await(t.Context(), Settle, "an answer", func() error {
				_, err := l.Host().Get(t.Context(), netip.AddrPort{}, port(vip, number))
				return err
			}))
		}
	})
}

// limitPorts makes a client reuse its ports within seconds, as a client with many
// connections does: nodes remember a connection for two minutes.
func limitPorts(t *testing.T, c *Client) {
	t.Helper()
	await(t, c.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40999"), 0)
	}))
}

// awaitOwners waits until one of these nodes announces each address and the host sends
// there.
func awaitOwners(t *testing.T, l *Lab, vips []netip.Addr, nodes ...string) {
	t.Helper()
	for _, vip := range vips {
		_, err := l.AwaitOwner(t.Context(), vip, nodes...)
		await(t, err)
	}
}

// awaitTakeover waits until the host sends to one of these nodes, whatever the unreachable
// node announces.
func awaitTakeover(t *testing.T, l *Lab, vips []netip.Addr, nodes ...string) error {
	return Await(t.Context(), Settle, "another node to take over", func() error {
		for _, vip := range vips {
			n, err := l.Neighbour(vip)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(nodes, func(node string) bool {
				mac, err := l.MAC(node)
				return err == nil && mac == n.MAC
			}) {
				return fmt.Errorf("the host has %s for %s", n.MAC, vip)
			}
		}
		return nil
	})
}
