package split

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
	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// A cell is one combination of what can be broken. There are two addresses of each family:
// two for n1, to one of which requests are sent, and two for n2.
type cell struct {
	name   string
	away   bool // the API server is
	stages []stage
	// lossy: nodes do not reach all pods, or no longer the host, so that requests are lost,
	// and none are sent. Else only requests in flight are lost when the host begins
	// to send to another node.
	lossy bool
}

// A stage is one thing that happens, and what it comes to.
type stage struct {
	what string
	do   func(context.Context, *matrix) error
	// passing is who claims the addresses at some time, in the end they are those of then.
	passing, then outcome
	// lasts: that does not change as long as nothing else happens, which is seen for as
	// long as a Lease counts.
	lasts bool
	// leftOut are the nodes whose pods are left out by some, as NODE: NODES.
	leftOut map[string][]string
}

// An outcome says which nodes claim each of n1's addresses and each of n2's: some like "n1+n2", any of some
// like "n2|n3", any node if empty.
type outcome struct{ first, second string }

var (
	home    = outcome{"n1", "n2"}
	without = outcome{"n2|n3", "n2"} // n1
	both    = outcome{"n1+n2|n1+n3", "n1+n2"}
	twice   = outcome{"n1+n2|n1+n3", ""} // as both, in which n1 may see n3 live before it misses n2
)

// cells are in an order in which the API server goes and comes back once.
var cells = []cell{
	{name: "nodes do not hear one another", stages: []stage{
		{what: "port 7946 of n1 is blocked", do: deafen, passing: twice, then: home, lasts: true},
		{what: "then n1's speaker is frozen, and its Lease not renewed", do: freeze, then: without},
		{what: "and goes on", do: thaw, then: home},
		{what: "then the speaker of n1 is stopped", do: terminate, then: without},
		{what: "and started", do: start, then: home},
		{what: "the port is open", do: mend, then: home},
	}},
	{name: "nodes do not hear one another, and one loses its link", lossy: true, stages: []stage{
		{what: "port 7946 of n1 is blocked", do: deafen, passing: twice, then: home},
		{what: "then n1 loses its link, and renews its Lease by another", do: cut, then: without},
		{what: "the link is back", do: join, then: home},
		{what: "the port is open", do: mend, then: home},
	}},
	{name: "the segment is parted", lossy: true, stages: []stage{
		{what: "n1 reaches hosts and no other node", do: divide, passing: twice, then: home},
		{what: "it is whole", do: mend, then: home},
	}},
	{name: "the segment is parted, and there are no Leases", lossy: true, stages: []stage{
		{what: "all speakers are started without", do: restartWith("--lease-interval", "0"), then: home},
		{what: "n1 reaches hosts and no other node", do: divide, then: both, lasts: true},
		{what: "it is whole", do: mend, then: home},
		{what: "all speakers are started with Leases", do: restartWith(usualFlags...), then: home},
	}},
	{name: "no node ever hears another", lossy: true, stages: []stage{
		{what: "all speakers are stopped, port 7946 is blocked everywhere, and they are started", do: restartDeaf, then: home, lasts: true},
		{what: "the port is open", do: mend, then: home},
	}},
	{name: "one node does not reach the API server", stages: []stage{
		{what: "n1 does not", do: deny, then: home, lasts: true},
		{what: "nor does it hear the others: no node sees it live", do: denyAndDeafen, then: both, lasts: true,
			leftOut: map[string][]string{"n1": nil, "n2": {"n1"}, "n3": {"n1"}}},
		{what: "both are mended", do: mend, then: home},
	}},
	{name: "a speaker is frozen", stages: []stage{
		{what: "n1's is", do: freeze, then: without},
		{what: "and goes on", do: thaw, then: home},
	}},
	{name: "a speaker is frozen, and it is another's turn", stages: []stage{
		{what: "n1's is", do: freeze, then: without},
		{what: "n2 should have its address", do: assign("n2"), then: outcome{"n2", "n2"}},
		{what: "n1's goes on", do: thaw, then: outcome{"n2", "n2"}},
		{what: "n1 should have it again", do: assign("n1"), then: home},
	}},
	{name: "a speaker is frozen, and does not hear the others when it goes on", stages: []stage{
		{what: "n1's is", do: freeze, then: without},
		{what: "its port is blocked, and it goes on", do: deafenAndThaw, then: home},
		{what: "the port is open", do: mend, then: home},
	}},
	{name: "a link is lost", lossy: true, stages: []stage{
		{what: "n1's is", do: cut, then: without, lasts: true},
		{what: "it is back", do: join, then: home},
	}},

	{name: "the API server is away", away: true, stages: []stage{
		{what: "nothing else happens", then: home, lasts: true},
		{what: "n1's speaker is killed", do: kill, then: without},
		{what: "and started", do: start, then: home},
	}},
	{name: "the API server is away, a speaker is frozen", away: true, stages: []stage{
		{what: "n1's is", do: freeze, then: without},
		{what: "and goes on", do: thaw, then: home},
	}},
	{name: "the API server is away, a speaker is frozen, and it is another's turn", away: true, lossy: true, stages: []stage{
		{what: "n2 loses its link", do: cutSecond, then: outcome{"n1", "n1|n3"}},
		{what: "the speaker that has its address now is frozen", do: freezeSecond, then: outcome{"", "n1|n3"}},
		{what: "n2 has its link back", do: join, then: outcome{"", "n2"}},
		{what: "the frozen one goes on", do: thaw, then: home},
	}},
	{name: "the API server is away, a link is lost", away: true, lossy: true, stages: []stage{
		{what: "n1's is", do: cut, then: without},
		{what: "it is back", do: join, then: home},
	}},
	{name: "the API server is away, a speaker is frozen, and does not hear the others when it goes on", away: true, stages: []stage{
		{what: "n1's is", do: freeze, then: without},
		{what: "its port is blocked, and it goes on", do: deafenAndThaw, then: both},
		{what: "the port is open", do: mend, then: home},
	}},
	{name: "the API server is away, the segment is parted", away: true, lossy: true, stages: []stage{
		{what: "n1 reaches hosts and no other node", do: divide, then: both, leftOut: map[string][]string{"n1": nil, "n2": {"n1"}, "n3": {"n1"}}},
		{what: "it is whole", do: mend, then: home},
	}},
	{name: "the API server is away, nodes do not hear one another", away: true, stages: []stage{
		{what: "port 7946 of n1 is blocked", do: deafen, then: both, lasts: true},
		{what: "the API server is back", do: restore, then: home},
		{what: "the port is open", do: mend, then: home},
	}},
}

const (
	// leaseInterval is the least that is possible. A Lease counts for three.
	leaseInterval = time.Second
	leaseCounts   = 3 * leaseInterval
)

// usualFlags are those of speakers in the matrix.
var usualFlags = []string{"--lease-interval", leaseInterval.String()}

func deafen(ctx context.Context, m *matrix) error { return m.Block(ctx, "n1", []uint16{7946}) }
func divide(ctx context.Context, m *matrix) error { return m.Partition(ctx, "n1") }
func mend(ctx context.Context, m *matrix) error   { return m.RepairNetwork(ctx) }
func cut(ctx context.Context, m *matrix) error    { return m.Disconnect(ctx, "n1") }
func join(ctx context.Context, m *matrix) error {
	return errors.Join(m.Reconnect(ctx, "n1"), m.Reconnect(ctx, "n2"))
}
func deny(ctx context.Context, m *matrix) error {
	return m.Block(ctx, "n1", nil, m.Kubernetes.Addr())
}
func denyAndDeafen(ctx context.Context, m *matrix) error {
	return m.Block(ctx, "n1", []uint16{7946}, m.Kubernetes.Addr())
}
func kill(_ context.Context, m *matrix) error      { return m.Speaker("n1").Kill() }
func terminate(_ context.Context, m *matrix) error { return m.Speaker("n1").Terminate() }
func start(ctx context.Context, m *matrix) error   { return m.StartL2Speakers(ctx, "n1") }
func cutSecond(ctx context.Context, m *matrix) error {
	return m.Disconnect(ctx, "n2")
}

func restartDeaf(ctx context.Context, m *matrix) (err error) {
	for _, n := range lab.NodeNames {
		err = errors.Join(err, m.Speaker(n).Terminate(), m.Block(ctx, n, []uint16{7946}))
	}
	return errors.Join(err, m.StartL2Speakers(ctx, lab.NodeNames...))
}

func restartWith(flags ...string) func(context.Context, *matrix) error {
	return func(ctx context.Context, m *matrix) (err error) {
		for _, n := range lab.NodeNames {
			err = errors.Join(err, m.Speaker(n).Terminate())
			m.Speaker(n).Flags = flags
		}
		return errors.Join(err, m.StartL2Speakers(ctx, lab.NodeNames...))
	}
}

func restore(ctx context.Context, m *matrix) error { return m.Kubernetes.StartAPIServer(ctx) }

func freeze(_ context.Context, m *matrix) error { return m.freeze("n1") }

func freezeSecond(_ context.Context, m *matrix) error {
	owners, err := m.claims.Now(m.second[0], time.Time{})
	if err != nil || len(owners) != 1 {
		return fmt.Errorf("%s is claimed by %v: %w", m.second[0], owners, err)
	}
	return m.freeze(owners[0])
}

func thaw(_ context.Context, m *matrix) (err error) {
	err = m.Speaker(m.frozen).Resume()
	m.frozen = ""
	return err
}

func deafenAndThaw(ctx context.Context, m *matrix) error {
	return errors.Join(deafen(ctx, m), thaw(ctx, m))
}

func assign(node string) func(context.Context, *matrix) error {
	return func(_ context.Context, m *matrix) error { return m.put("first", m.first, node) }
}

// A matrix is the laboratory, and what is watched in it.
type matrix struct {
	*kube.Lab
	claims        *lab.Claims
	first, second pair
	frozen        string // the node whose speaker is; empty for none
}

// A pair is an address of each family.
type pair [2]netip.Addr

func (m *matrix) freeze(node string) error {
	m.frozen = node
	return m.Speaker(node).Freeze()
}

// put serves addresses, which a node should have.
func (m *matrix) put(name string, vips pair, node string) error {
	return m.Cluster.Put(lab.Service{Name: name, Ask: vips[:], Families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		Endpoints: lab.At("p11", "p21", "p31"), Annotations: map[string]string{"fanfare.io/l2-node": node}})
}

// Two nodes may claim one address while they cannot know better: as soon as one sees that
// the other lives, by its voice or by its Lease, one of them ends it, and hosts know which.
// What breaks something, and what mends it, costs no request but for the reasons given.
func TestWhoClaimsAnAddress(t *testing.T) {
	m := newMatrix(t, usualFlags...)
	for i, c := range cells {
		t.Run(c.name, func(t *testing.T) { m.run(t, c, m.first[i%len(m.first)]) })
	}
}

// run runs a cell, with requests to one of n1's addresses.
func (m *matrix) run(t *testing.T, c cell, vip netip.Addr) {
	ctx := t.Context()
	t.Cleanup(func() { m.whole(t) })
	if alive := m.Kubernetes.APIServer.Alive(); c.away && alive {
		m.Kubernetes.APIServer.Kill()
	} else if !c.away && !alive {
		must(t, restore(ctx, m))
	}
	if c.lossy {
		m.stages(t, c)
		return
	}
	moves, err := m.WatchNeighbours()
	must(t, err)
	defer moves.Close()
	load := m.Host().StartLimitedLoad(ctx, netip.AddrPortFrom(vip, 80))
	m.stages(t, c)
	r := load.Stop()
	changes, err := moves.Of(vip)
	must(t, err)
	t.Logf("the host began to send to another node for %s %d times; %s", vip, len(changes), r)
	if lost := strays(r, changes); len(lost) > 0 {
		t.Errorf("it did at %v, and requests were lost at other times:\n%s", changes, lab.Report{Lost: lost}.Losses(r.Began))
	}
}

// strays are the requests that were lost although the host did not begin to send to another
// node while they were under way. Most of those are reset by the other node; where it
// remembers an earlier connection of the same port, they hear nothing until they give up.
// A kernel that has changed an entry may have to wait before it says so.
func strays(r lab.Report, changes []time.Time) []lab.Loss {
	const late = 250 * time.Millisecond
	return slices.DeleteFunc(slices.Clone(r.Lost), func(l lab.Loss) bool {
		return slices.ContainsFunc(changes, func(c time.Time) bool { return l.Begin.Before(c.Add(late)) && l.End.After(c.Add(-late)) })
	})
}

func (m *matrix) stages(t *testing.T, c cell) {
	for _, s := range c.stages {
		if err := m.stage(t, s); err != nil {
			t.Errorf("%s: %v", s.what, err)
			return
		}
	}
}

// stage has something happen, and awaits what comes of it.
func (m *matrix) stage(t *testing.T, s stage) error {
	ctx, began := t.Context(), time.Now()
	if s.do != nil {
		if err := s.do(ctx, m); err != nil {
			return err
		}
	}
	done := time.Now()
	err := lab.Await(ctx, lab.Settle, fmt.Sprintf("claims of %v by %s, and of %v by %s", m.first, s.then.first, m.second, s.then.second), func() error {
		return errors.Join(m.passed(s.passing, began), m.is(s.then, done))
	})
	over := time.Now()
	if err != nil {
		return errors.Join(err, errors.New(m.history(began)))
	}
	t.Logf("%s: after %s; n1's addresses: %s; n2's: %s", s.what, round(over.Sub(done)), m.shares(m.first, began, over), m.shares(m.second, began, over))
	if s.leftOut != nil {
		if err := m.leavesOut(ctx, s.leftOut); err != nil {
			return err
		}
	}
	if !s.lasts {
		return nil
	}
	if err := pause(ctx, leaseCounts); err != nil {
		return err
	}
	// On a busy machine a speaker may be missed for a moment; that passes.
	return lab.Await(ctx, lab.Settle, "it to last", func() error { return m.is(s.then, over.Add(leaseCounts)) })
}

// shares says for how long more than one node claimed addresses, and none did.
func (m *matrix) shares(vips pair, from, to time.Time) string {
	two4, none4 := m.claims.Coverage(vips[0], from, to)
	two6, none6 := m.claims.Coverage(vips[1], from, to)
	return fmt.Sprintf("claimed by two for %s (IPv6 %s), by no node for %s (%s)", round(two4), round(two6), round(none4), round(none6))
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// passed says whether addresses have been claimed by all of some nodes since a time.
func (m *matrix) passed(want outcome, since time.Time) error {
	for vip, nodes := range m.of(want) {
		got, err := m.claims.Since(vip, since)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(alternatives(nodes), func(all []string) bool {
			return !slices.ContainsFunc(all, func(n string) bool { return !slices.Contains(got, n) })
		}) {
			return fmt.Errorf("%s was claimed by %v alone", vip, got)
		}
	}
	return nil
}

// is says whether addresses are claimed by some nodes and no others, and the host sends to
// one of those.
func (m *matrix) is(want outcome, since time.Time) error {
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
		if !slices.ContainsFunc(got, func(node string) bool { mac, err := m.MAC(node); return err == nil && mac == n.MAC }) {
			return fmt.Errorf("the host has %s (%s) for %s", n.MAC, n.State, vip)
		}
	}
	return nil
}

// of are the addresses of which an outcome says something.
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

// alternatives are the sets of nodes that "n1+n2|n3" stands for.
func alternatives(nodes string) (all [][]string) {
	for one := range strings.SplitSeq(nodes, "|") {
		all = append(all, strings.Split(one, "+"))
	}
	return all
}

// leavesOut waits until speakers leave out the pods of some nodes.
func (m *matrix) leavesOut(ctx context.Context, want map[string][]string) error {
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

// history is what speakers have logged about one another, and about addresses.
func (m *matrix) history(since time.Time) string {
	var b strings.Builder
	for _, n := range lab.NodeNames {
		for line := range strings.Lines(m.Speaker(n).Log()) {
			stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil && at.After(since) {
				fmt.Fprintf(&b, "%+.3f s %s: %s", at.Sub(since).Seconds(), n, rest)
			}
		}
	}
	return b.String()
}

// whole mends everything but the API server, and waits until it is as at first.
func (m *matrix) whole(t testing.TB) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if m.frozen != "" {
		must(t, thaw(ctx, m))
	}
	must(t, m.RepairNetwork(ctx))
	must(t, m.StartL2Speakers(ctx, lab.NodeNames...))
	began := time.Now()
	must(t, lab.Await(ctx, lab.Settle, "everything to be as at first", func() error {
		for _, n := range lab.NodeNames {
			st, err := m.Speaker(n).Status(ctx)
			if err != nil {
				return err
			}
			if len(st.Members.Nodes) != len(lab.NodeNames) || slices.ContainsFunc(st.Members.Nodes, func(x struct{ Node, State string }) bool { return x.State != "alive" }) {
				return fmt.Errorf("%s knows %v", n, st.Members.Nodes)
			}
		}
		return m.is(home, began)
	}))
	m.ask(t, ctx)
}

// ask has the host ask for n1's addresses, so that it knows who has them.
func (m *matrix) ask(t testing.TB, ctx context.Context) {
	t.Helper()
	for _, vip := range m.first {
		_, err := m.Host().Get(ctx, netip.AddrPort{}, netip.AddrPortFrom(vip, 80))
		must(t, err)
	}
}

// newMatrix builds one, whose speakers have some flags.
func newMatrix(t testing.TB, flags ...string) *matrix {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a minute")
	}
	if err := lab.Missing(); err != nil {
		nstest.Missing(t, err.Error())
	}
	tools, err := kube.Tools(t.Context(), true)
	must(t, err)
	fanfare := filepath.Join(t.TempDir(), "fanfare")
	must(t, binary.Build(t.Context(), fanfare))
	l, err := kube.UpLab(t.Context(), kube.LabOptions{ID: fmt.Sprintf("s%d", os.Getpid()), Source: "../../..", Fanfare: fanfare, Tools: tools, Links: true})
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
	for vip, node := range m.of(home) {
		_, err := l.AwaitOwner(t.Context(), vip, node)
		must(t, err)
	}
	m.ask(t, t.Context())
	return m
}

// pause lets time pass in which nothing should happen.
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
