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

// laboratoryL2 builds a lab for layer 2, beside which there is no other: what is
// measured there is short.
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

// linked serves Services, for the time of a test, and returns the addresses of the first.
func serveL2(t *testing.T, l *Lab, services ...Service) (vips []netip.Addr) {
	t.Helper()
	svc := services[0]
	await(t, l.Cluster.Put(services...))
	t.Cleanup(func() {
		await(t, l.Cluster.Delete(svc.Name))
		for _, vip := range vips {
			await(t, Await(context.WithoutCancel(t.Context()), Settle, "no node to answer for "+vip.String(), func() error {
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

func (e errOwned) Error() string { return "answered for by " + strings.Join(e, ", ") }

// pinned has a node named by annotation.
func pinnedTo(s Service, node string) Service {
	s.Annotations = map[string]string{"fanfare.io/l2-node": node}
	return s
}

var bothFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}

// quiet sends connections while something happens, and expects that none is lost, except
// those in flight when the host began to send to another node, which does not know
// them.
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
		t.Logf("%s: moved %d times; %s; under way: %d", vips[i], len(changes), r, len(r.Lost)-len(rest))
		if len(rest) > 0 || r.Sent == 0 {
			t.Errorf("%s: moved at %v; %s\n%s", vips[i], changes, r, Report{Lost: rest}.Losses(r.Began))
		}
	}
}

// lossless sends connections to all addresses while something happens, beside some that stay
// open, and expects that nothing at all is lost. Connections that stay open hear an answer after it.
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
				t.Errorf("%s: moved at %v: a connection to %s ended after %d lines: %v", vips[i], changes, flow.Pod, flow.Exchanged(), err)
			}
		}
	}
}

// unexplained are the requests that were lost although the host did not begin to send to
// another node while they were under way. On a busy machine a kernel that has changed an
// entry may have to wait before it says so. What is not reset hears nothing: the other node
// remembers an earlier connection of the same port, and conntrack takes this one's packets for that one's.
func unexplained(r Report, changes []time.Time) []Loss {
	const (
		late = 250 * time.Millisecond
		busy = 2 * time.Second // as long as a request may have been under way
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
		{"silent since the move", 9.9, 19.9, os.ErrDeadlineExceeded, 0},
		{"silent since long before it", 5, 15, os.ErrDeadlineExceeded, 1},
		{"silent since after it", 10.1, 20.1, os.ErrDeadlineExceeded, 1},
		{"no connection", 9.9, 12.9, context.DeadlineExceeded, 1},
	} {
		lost := Loss{at(c.begin), at(c.end), fmt.Errorf("receive: %w", c.err)}
		if got := unexplained(Report{Lost: []Loss{lost}}, []time.Time{at(10)}); len(got) != c.want {
			t.Errorf("%s: %v; want %d", c.name, got, c.want)
		}
	}
}

// TestL2 has one lab, in which one thing happens after the other, to addresses of both
// families. Connections are opened to one at a time: a busy machine has enough with that.
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
			// Kernels ask by unicast whether a neighbour is there.
			await(t, l.ProbeNeighbour(t.Context(), vip))
			// The client behind the router goes by the router's neighbour table.
			if vip.Is4() {
				if _, err := l.Client.Get(t.Context(), netip.AddrPortFrom(ClientAddr, 0), port(vip, 80)); err != nil {
					t.Errorf("%s by the router: %v", vip, err)
				}
			}
			text, err := l.Speaker(owner).StatusText(t.Context())
			await(t, err)
			if !strings.Contains(text, "yes, on eth1") || strings.Contains(text, "BGPPeer") {
				t.Errorf("%s says:\n%s", owner, text)
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
			t.Errorf("n1 says:\n%s", text)
		}
	})

	t.Run("planned moves round", func(t *testing.T) {
		vips := serveL2(t, l, pinnedTo(web, "n1"))
		awaitOwners(t, l, vips, "n1")
		for _, to := range []string{"n2", "n3", "n1"} {
			expectNoLossL2(t, l, vips, func() {
				await(t, l.Cluster.Put(pinnedTo(web, to)))
				awaitOwners(t, l, vips, to)
			})
		}
	})

	t.Run("SIGTERM and back", func(t *testing.T) {
		vips := serveL2(t, l, pinnedTo(web, "n2"))
		awaitOwners(t, l, vips, "n2")
		expectNoLossL2(t, l, vips, func() {
			await(t, l.Speaker("n2").Terminate())
			awaitOwners(t, l, vips, "n1", "n3")
			await(t, l.StartL2Speakers(t.Context(), "n2"))
			awaitOwners(t, l, vips, "n2")
		})
	})

	t.Run("crash and back", func(t *testing.T) {
		vips := serveL2(t, l, pinnedTo(web, "n2"))
		awaitOwners(t, l, vips, "n2")
		expectOnlyInterrupted(t, l, vips[:1], func() {
			await(t, l.Speaker("n2").Kill())
			awaitOwners(t, l, vips, "n1", "n3")
			await(t, l.StartL2Speakers(t.Context(), "n2"))
			awaitOwners(t, l, vips, "n2")
		})
	})

	t.Run("freeze and thaw", func(t *testing.T) {
		vips := serveL2(t, l, pinnedTo(web, "n3"))
		awaitOwners(t, l, vips, "n3")
		expectOnlyInterrupted(t, l, vips[1:], func() {
			frozen := l.Speaker("n3")
			await(t, frozen.Freeze())
			await(t, awaitTakeover(t, l, vips, "n1", "n2"))
			await(t, frozen.Resume())
			awaitOwners(t, l, vips, "n3")
		})
	})

	t.Run("power cut and back", func(t *testing.T) {
		vips := serveL2(t, l, pinnedTo(web, "n1"))
		awaitOwners(t, l, vips, "n1")
		loads := []*Load{l.Host().StartLimitedLoad(t.Context(), port(vips[0], 80))}
		began := time.Now()
		await(t, l.PowerOff(t.Context(), "n1"))
		// Its pods are behind it, and must be left out.
		awaitOwners(t, l, vips, "n2", "n3")
		takenOver := time.Now()
		for i, load := range loads {
			await(t, load.AwaitAnswered(t.Context(), takenOver))
			r := load.Stop()
			t.Logf("%s: taken over within %s; %s", vips[i], takenOver.Sub(began).Round(time.Millisecond), r)
			for _, lost := range r.Lost {
				// A connection that began before may have been sent to the dead node.
				if lost.Begin.After(takenOver) {
					t.Errorf("%s: a request was lost %s after another node had taken over: %v", vips[i], lost.Begin.Sub(takenOver), lost.Err)
				}
			}
		}
		expectOnlyInterrupted(t, l, vips[1:], func() {
			await(t, l.Reboot(t.Context(), "n1"))
			awaitOwners(t, l, vips, "n1")
		})
	})

	t.Run("cut off, with the neighbours", func(t *testing.T) {
		// The node receives no messages and no other node receives its own, but it runs: when
		// it is back, each side has answered, and only the right node continues.
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
			s := pinnedTo(Service{Name: name, Endpoints: At("p11"), Port: number, Ask: []netip.Addr{netip.MustParseAddr("198.51.100.249")}}, "n3")
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

// fewPorts has a client use its ports again within seconds, as one does that has made many connections:
// nodes remember a connection for two minutes.
func limitPorts(t *testing.T, c *Client) {
	t.Helper()
	await(t, c.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40999"), 0)
	}))
}

// owned waits until the host has one of these nodes for each address, and they say so.
func awaitOwners(t *testing.T, l *Lab, vips []netip.Addr, nodes ...string) {
	t.Helper()
	for _, vip := range vips {
		_, err := l.AwaitOwner(t.Context(), vip, nodes...)
		await(t, err)
	}
}

// awaitOther waits until one of these nodes answers, whatever another one thinks that
// cannot be asked.
func awaitTakeover(t *testing.T, l *Lab, vips []netip.Addr, nodes ...string) error {
	return Await(t.Context(), Settle, "another node to take over", func() error {
		for _, vip := range vips {
			n, err := l.Neighbour(vip)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(nodes, func(node string) bool { mac, err := l.MAC(node); return err == nil && mac == n.MAC }) {
				return fmt.Errorf("the host has %s for %s", n.MAC, vip)
			}
		}
		return nil
	})
}
