package partition

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/e2e/binary"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/e2e/observer"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A matrix is the laboratory with its recorded claims.
type matrix struct {
	*kube.Lab
	claims        *observer.Claims
	first, second pair
	frozen        string // the node whose speaker is frozen; empty for none
}

// A pair is an address of each family.
type pair [2]netip.Addr

func (m *matrix) freeze(node string) error {
	m.frozen = node
	return m.Speaker(node).Freeze()
}

// put creates a Service with these addresses, which the given node should announce.
func (m *matrix) put(name string, vips pair, node string) error {
	return m.Cluster.Put(lab.Service{Name: name, Ask: vips[:],
		Families:  []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		Endpoints: lab.At("p11", "p21", "p31"), Annotations: map[string]string{"fanfare.io/l2-node": node}})
}

// Two nodes may claim one address while neither can know that the other is alive. As soon
// as one knows, by membership or by Lease, one of them stops, and hosts learn the remaining
// one. Failures and repairs lose no request except for the reasons given.
func TestClaimsDuringFailures(t *testing.T) {
	m := newMatrix(t, usualFlags...)
	for i, c := range failureCases {
		t.Run(c.name, func(t *testing.T) { m.run(t, c, m.first[i%len(m.first)]) })
	}
}

// run runs a failureCase with requests to one of n1's addresses.
func (m *matrix) run(t *testing.T, c failureCase, vip netip.Addr) {
	ctx := t.Context()
	t.Cleanup(func() { m.repairAll(t) })
	if alive := m.Kubernetes.APIServer.Alive(); c.apiServerDown && alive {
		m.Kubernetes.APIServer.Kill()
	} else if !c.apiServerDown && !alive {
		must(t, restore(ctx, m))
	}
	if c.lossy {
		m.steps(t, c)
		return
	}
	moves, err := m.WatchNeighbours()
	must(t, err)
	defer moves.Close()
	load := m.Host().StartLimitedLoad(ctx, netip.AddrPortFrom(vip, 80))
	m.steps(t, c)
	r := load.Stop()
	changes, err := moves.Of(vip)
	must(t, err)
	t.Logf("the host moved %s to another node %d times; %s", vip, len(changes), r)
	if lost := unexplained(r, changes); len(lost) > 0 {
		t.Errorf("the host moved at %v, and requests were lost at other times:\n%s", changes,
			lab.Report{Lost: lost}.Losses(r.Began))
	}
}

// unexplained returns the losses that no move of the host explains. The new node resets
// most connections in flight; where it has a conntrack entry of an earlier connection from
// the port, they time out. A busy kernel may report a changed entry late.
func unexplained(r lab.Report, changes []time.Time) []lab.Loss {
	const late = 250 * time.Millisecond
	return slices.DeleteFunc(slices.Clone(r.Lost), func(l lab.Loss) bool {
		return slices.ContainsFunc(changes, func(c time.Time) bool {
			return l.Begin.Before(c.Add(late)) && l.End.After(c.Add(-late))
		})
	})
}

func (m *matrix) steps(t *testing.T, c failureCase) {
	for _, s := range c.steps {
		if err := m.step(t, s); err != nil {
			t.Errorf("%s: %v", s.what, err)
			return
		}
	}
}

// step causes an event and waits for the outcome.
func (m *matrix) step(t *testing.T, s step) error {
	ctx, began := t.Context(), time.Now()
	if s.do != nil {
		if err := s.do(ctx, m); err != nil {
			return err
		}
	}
	done := time.Now()
	err := lab.Await(ctx, lab.Settle, fmt.Sprintf("claims of %v by %s, and of %v by %s", m.first, s.final.first,
		m.second, s.final.second), func() error {
		return errors.Join(m.wasMarkedDead(s.dead, began), m.isClaimedBy(s.final, done))
	})
	over := time.Now()
	if err != nil {
		return errors.Join(err, errors.New(m.speakerLogs(began)))
	}
	t.Logf("%s: after %s; n1's addresses: %s; n2's: %s", s.what, round(over.Sub(done)),
		m.coverage(m.first, began, over), m.coverage(m.second, began, over))
	if s.leftOut != nil {
		if err := m.awaitLeftOut(ctx, s.leftOut); err != nil {
			return err
		}
	}
	if !s.stable {
		return nil
	}
	if err := pause(ctx, leaseDuration); err != nil {
		return err
	}
	// On a busy machine a speaker may be marked dead for a moment.
	return lab.Await(ctx, lab.Settle, "the outcome to last",
		func() error { return m.isClaimedBy(s.final, over.Add(leaseDuration)) })
}

// coverage describes how long several nodes claimed addresses, and no node did.
func (m *matrix) coverage(vips pair, from, to time.Time) string {
	two4, none4 := m.claims.Coverage(vips[0], from, to)
	two6, none6 := m.claims.Coverage(vips[1], from, to)
	return fmt.Sprintf("claimed by several nodes for %s (IPv6 %s), by none for %s (%s)", round(two4), round(two6),
		round(none4), round(none6))
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// wasMarkedDead returns an error unless all other nodes have marked a node dead since a time.
func (m *matrix) wasMarkedDead(node string, since time.Time) error {
	for _, n := range lab.NodeNames {
		if node != "" && n != node && !strings.Contains(m.speakerLog(n, since), `msg="node is dead" node=`+node+"\n") {
			return fmt.Errorf("%s has not marked %s dead", n, node)
		}
	}
	return nil
}

// isClaimedBy returns an error unless exactly the nodes of an outcome claim the addresses,
// and the host sends to one of these.
func (m *matrix) isClaimedBy(want outcome, since time.Time) error {
	for vip, nodes := range m.of(want) {
		got, err := m.claims.Now(vip, since)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(alternatives(nodes), func(all []string) bool { return slices.Equal(all, got) }) {
			return fmt.Errorf("%s is claimed by %v", vip, got)
		}
		if !slices.Contains(m.first[:], vip) {
			continue
		}
		n, err := m.Neighbour(vip)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(got, func(node string) bool {
			mac, err := m.MAC(node)
			return err == nil && mac == n.MAC
		}) {
			return fmt.Errorf("the host has %s (%s) for %s", n.MAC, n.State, vip)
		}
	}
	return nil
}

// of returns the addresses that an outcome restricts.
func (m *matrix) of(o outcome) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for i := range m.first {
		if o.first != "" {
			all[m.first[i]] = o.first
		}
		if o.second != "" {
			all[m.second[i]] = o.second
		}
	}
	return all
}

// alternatives returns the sets of nodes in "n1+n2|n3".
func alternatives(nodes string) (all [][]string) {
	for one := range strings.SplitSeq(nodes, "|") {
		all = append(all, strings.Split(one, "+"))
	}
	return all
}

// awaitLeftOut waits until speakers leave out the pods of these nodes.
func (m *matrix) awaitLeftOut(ctx context.Context, want map[string][]string) error {
	return lab.Await(ctx, lab.Settle, fmt.Sprintf("the pods of %v to be left out", want), func() error {
		for node, nodes := range want {
			st, err := m.Speaker(node).Status(ctx)
			if err != nil {
				return err
			}
			if !slices.Equal(st.Members.LeftOut, nodes) {
				return fmt.Errorf("%s leaves out %v", node, st.Members.LeftOut)
			}
		}
		return nil
	})
}

// speakerLogs returns the speakers' logs since a time.
func (m *matrix) speakerLogs(since time.Time) string {
	var b strings.Builder
	for _, n := range lab.NodeNames {
		b.WriteString(m.speakerLog(n, since))
	}
	return b.String()
}

// speakerLog returns the log of a node's speaker since a time.
func (m *matrix) speakerLog(node string, since time.Time) string {
	var b strings.Builder
	for line := range strings.Lines(m.Speaker(node).Log()) {
		stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil && at.After(since) {
			fmt.Fprintf(&b, "%+.3f s %s: %s", at.Sub(since).Seconds(), node, rest)
		}
	}
	return b.String()
}

// repairAll repairs everything but the API server and waits for the initial state.
func (m *matrix) repairAll(t testing.TB) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if m.frozen != "" {
		must(t, resume(ctx, m))
	}
	must(t, m.RepairNetwork(ctx))
	must(t, m.StartL2Speakers(ctx, lab.NodeNames...))
	began := time.Now()
	must(t, lab.Await(ctx, lab.Settle, "the initial state", func() error {
		for _, n := range lab.NodeNames {
			st, err := m.Speaker(n).Status(ctx)
			if err != nil {
				return err
			}
			if len(st.Members.Nodes) != len(lab.NodeNames) ||
				slices.ContainsFunc(st.Members.Nodes,
					func(x struct{ Node, State string }) bool { return x.State != "alive" }) {
				return fmt.Errorf("%s shows %v", n, st.Members.Nodes)
			}
		}
		return m.isClaimedBy(normal, began)
	}))
	m.resolve(t, ctx)
}

// resolve makes the host resolve n1's addresses.
func (m *matrix) resolve(t testing.TB, ctx context.Context) {
	t.Helper()
	for _, vip := range m.first {
		_, err := m.Host().Get(ctx, netip.AddrPort{}, netip.AddrPortFrom(vip, 80))
		must(t, err)
	}
}

// newMatrix builds a matrix, whose speakers have the given flags.
func newMatrix(t testing.TB, flags ...string) *matrix {
	t.Helper()
	if testing.Short() {
		t.Skip("the timeouts of membership and Leases take a minute")
	}
	if err := lab.Missing(); err != nil {
		nstest.Missing(t, err.Error())
	}
	tools, err := kube.Tools(t.Context(), true)
	must(t, err)
	fanfare := filepath.Join(t.TempDir(), "fanfare")
	must(t, binary.Build(t.Context(), fanfare))
	l, err := kube.UpLab(t.Context(), kube.LabOptions{
		ID: fmt.Sprintf("s%d", os.Getpid()), Source: "../../..", Fanfare: fanfare, Tools: tools, L2: true,
	})
	must(t, err)
	t.Cleanup(func() { must(t, l.Down()) })
	m := &matrix{Lab: l, first: pair{netip.MustParseAddr("198.51.100.201"), netip.MustParseAddr("2001:db8:51::201")},
		second: pair{netip.MustParseAddr("198.51.100.202"), netip.MustParseAddr("2001:db8:51::202")}}
	for _, n := range lab.NodeNames {
		l.Speaker(n).Flags = flags
	}
	must(t, l.StartL2Speakers(t.Context(), lab.NodeNames...))
	must(t, errors.Join(m.put("first", m.first, "n1"), m.put("second", m.second, "n2")))
	m.claims, err = l.WatchClaims(slices.Concat(m.first[:], m.second[:])...)
	must(t, err)
	t.Cleanup(m.claims.Close)
	for vip, node := range m.of(normal) {
		_, err := l.AwaitOwner(t.Context(), vip, node)
		must(t, err)
	}
	m.resolve(t, t.Context())
	return m
}

// pause waits for a time in which nothing should happen.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
