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
type failureCase struct {
	name          string
	apiServerDown bool // the API server is
	steps         []step
	// lossy: nodes do not reach all pods, or no longer the host, so that requests are lost,
	// and none are sent. Else only requests in flight are lost when the host begins
	// to send to another node.
	lossy bool
}

// A stage is one thing that happens, and what it comes to.
type step struct {
	what string
	do   func(context.Context, *matrix) error
	// passing is who claims the addresses at some time, in the end they are those of then.
	transient, final outcome
	// lasts: that does not change as long as nothing else happens, which is seen for as
	// long as a Lease counts.
	stable bool
	// leftOut are the nodes whose pods are left out by some, as NODE: NODES.
	leftOut map[string][]string
}

// An outcome says which nodes claim each of n1's addresses and each of n2's: some like "n1+n2", any of some
// like "n2|n3", any node if empty.
type outcome struct{ first, second string }

var (
	normal     = outcome{"n1", "n2"}
	withoutN1  = outcome{"n2|n3", "n2"} // n1
	twoClaim   = outcome{"n1+n2|n1+n3", "n1+n2"}
	twoBriefly = outcome{"n1+n2|n1+n3", ""} // as both, in which n1 may see n3 live before it misses n2
)

// cells are in an order in which the API server goes and comes back once.
var failureCases = []failureCase{
	{name: "nodes do not hear one another", steps: []step{
		{what: "port 7946 of n1 is blocked", do: blockMembership, transient: twoBriefly, final: normal, stable: true},
		{what: "then n1's speaker is frozen, and its Lease not renewed", do: freeze, final: withoutN1},
		{what: "and goes on", do: resume, final: normal},
		{what: "then the speaker of n1 is stopped", do: terminate, final: withoutN1},
		{what: "and started", do: start, final: normal},
		{what: "the port is open", do: repair, final: normal},
	}},
	{name: "nodes do not hear one another, and one loses its link", lossy: true, steps: []step{
		{what: "port 7946 of n1 is blocked", do: blockMembership, transient: twoBriefly, final: normal},
		{what: "then n1 loses its link, and renews its Lease by another", do: disconnect, final: withoutN1},
		{what: "the link is back", do: reconnect, final: normal},
		{what: "the port is open", do: repair, final: normal},
	}},
	{name: "the segment is parted", lossy: true, steps: []step{
		{what: "n1 reaches hosts and no other node", do: partition, transient: twoBriefly, final: normal},
		{what: "it is whole", do: repair, final: normal},
	}},
	{name: "the segment is parted, and there are no Leases", lossy: true, steps: []step{
		{what: "all speakers are started without", do: restartWith("--lease-interval", "0"), final: normal},
		{what: "n1 reaches hosts and no other node", do: partition, final: twoClaim, stable: true},
		{what: "it is whole", do: repair, final: normal},
		{what: "all speakers are started with Leases", do: restartWith(usualFlags...), final: normal},
	}},
	{name: "no node ever hears another", lossy: true, steps: []step{
		{what: "all speakers are stopped, port 7946 is blocked everywhere, and they are started", do: restartBlocked, final: normal, stable: true},
		{what: "the port is open", do: repair, final: normal},
	}},
	{name: "one node does not reach the API server", steps: []step{
		{what: "n1 does not", do: blockAPIServer, final: normal, stable: true},
		{what: "nor does it hear the others: no node sees it live", do: blockBoth, final: twoClaim, stable: true,
			leftOut: map[string][]string{"n1": nil, "n2": {"n1"}, "n3": {"n1"}}},
		{what: "both are mended", do: repair, final: normal},
	}},
	{name: "a speaker is frozen", steps: []step{
		{what: "n1's is", do: freeze, final: withoutN1},
		{what: "and goes on", do: resume, final: normal},
	}},
	{name: "a speaker is frozen, and it is another's turn", steps: []step{
		{what: "n1's is", do: freeze, final: withoutN1},
		{what: "n2 should have its address", do: assignTo("n2"), final: outcome{"n2", "n2"}},
		{what: "n1's goes on", do: resume, final: outcome{"n2", "n2"}},
		{what: "n1 should have it again", do: assignTo("n1"), final: normal},
	}},
	{name: "a speaker is frozen, and does not hear the others when it goes on", steps: []step{
		{what: "n1's is", do: freeze, final: withoutN1},
		{what: "its port is blocked, and it goes on", do: blockMembershipAndResume, final: normal},
		{what: "the port is open", do: repair, final: normal},
	}},
	{name: "a link is lost", lossy: true, steps: []step{
		{what: "n1's is", do: disconnect, final: withoutN1, stable: true},
		{what: "it is back", do: reconnect, final: normal},
	}},

	{name: "the API server is away", apiServerDown: true, steps: []step{
		{what: "nothing else happens", final: normal, stable: true},
		{what: "n1's speaker is killed", do: kill, final: withoutN1},
		{what: "and started", do: start, final: normal},
	}},
	{name: "the API server is away, a speaker is frozen", apiServerDown: true, steps: []step{
		{what: "n1's is", do: freeze, final: withoutN1},
		{what: "and goes on", do: resume, final: normal},
	}},
	{name: "the API server is away, a speaker is frozen, and it is another's turn", apiServerDown: true, lossy: true, steps: []step{
		{what: "n2 loses its link", do: disconnectSecond, final: outcome{"n1", "n1|n3"}},
		{what: "the speaker that has its address now is frozen", do: freezeSecond, final: outcome{"", "n1|n3"}},
		{what: "n2 has its link back", do: reconnect, final: outcome{"", "n2"}},
		{what: "the frozen one goes on", do: resume, final: normal},
	}},
	{name: "the API server is away, a link is lost", apiServerDown: true, lossy: true, steps: []step{
		{what: "n1's is", do: disconnect, final: withoutN1},
		{what: "it is back", do: reconnect, final: normal},
	}},
	{name: "the API server is away, a speaker is frozen, and does not hear the others when it goes on", apiServerDown: true, steps: []step{
		{what: "n1's is", do: freeze, final: withoutN1},
		{what: "its port is blocked, and it goes on", do: blockMembershipAndResume, final: twoClaim},
		{what: "the port is open", do: repair, final: normal},
	}},
	{name: "the API server is away, the segment is parted", apiServerDown: true, lossy: true, steps: []step{
		{what: "n1 reaches hosts and no other node", do: partition, final: twoClaim, leftOut: map[string][]string{"n1": nil, "n2": {"n1"}, "n3": {"n1"}}},
		{what: "it is whole", do: repair, final: normal},
	}},
	{name: "the API server is away, nodes do not hear one another", apiServerDown: true, steps: []step{
		{what: "port 7946 of n1 is blocked", do: blockMembership, final: twoClaim, stable: true},
		{what: "the API server is back", do: restore, final: normal},
		{what: "the port is open", do: repair, final: normal},
	}},
}

const (
	// leaseInterval is the least that is possible. A Lease counts for three.
	leaseInterval = time.Second
	leaseDuration = 3 * leaseInterval
)

// usualFlags are those of speakers in the matrix.
var usualFlags = []string{"--lease-interval", leaseInterval.String()}

func blockMembership(ctx context.Context, m *matrix) error { return m.Block(ctx, "n1", []uint16{7946}) }
func partition(ctx context.Context, m *matrix) error       { return m.Partition(ctx, "n1") }
func repair(ctx context.Context, m *matrix) error          { return m.RepairNetwork(ctx) }
func disconnect(ctx context.Context, m *matrix) error      { return m.Disconnect(ctx, "n1") }
func reconnect(ctx context.Context, m *matrix) error {
	return errors.Join(m.Reconnect(ctx, "n1"), m.Reconnect(ctx, "n2"))
}
func blockAPIServer(ctx context.Context, m *matrix) error {
	return m.Block(ctx, "n1", nil, m.Kubernetes.Addr())
}
func blockBoth(ctx context.Context, m *matrix) error {
	return m.Block(ctx, "n1", []uint16{7946}, m.Kubernetes.Addr())
}
func kill(_ context.Context, m *matrix) error      { return m.Speaker("n1").Kill() }
func terminate(_ context.Context, m *matrix) error { return m.Speaker("n1").Terminate() }
func start(ctx context.Context, m *matrix) error   { return m.StartL2Speakers(ctx, "n1") }
func disconnectSecond(ctx context.Context, m *matrix) error {
	return m.Disconnect(ctx, "n2")
}

func restartBlocked(ctx context.Context, m *matrix) (err error) {
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

func resume(_ context.Context, m *matrix) (err error) {
	err = m.Speaker(m.frozen).Resume()
	m.frozen = ""
	return err
}

func blockMembershipAndResume(ctx context.Context, m *matrix) error {
	return errors.Join(blockMembership(ctx, m), resume(ctx, m))
}

func assignTo(node string) func(context.Context, *matrix) error {
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
func TestClaimsDuringFailures(t *testing.T) {
	m := newMatrix(t, usualFlags...)
	for i, c := range failureCases {
		t.Run(c.name, func(t *testing.T) { m.run(t, c, m.first[i%len(m.first)]) })
	}
}

// run runs a cell, with requests to one of n1's addresses.
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
	t.Logf("the host began to send to another node for %s %d times; %s", vip, len(changes), r)
	if lost := unexplained(r, changes); len(lost) > 0 {
		t.Errorf("it did at %v, and requests were lost at other times:\n%s", changes, lab.Report{Lost: lost}.Losses(r.Began))
	}
}

// strays are the requests that were lost although the host did not begin to send to another
// node while they were under way. Most of those are reset by the other node; where it
// remembers an earlier connection of the same port, they hear nothing until they give up.
// A kernel that has changed an entry may have to wait before it says so.
func unexplained(r lab.Report, changes []time.Time) []lab.Loss {
	const late = 250 * time.Millisecond
	return slices.DeleteFunc(slices.Clone(r.Lost), func(l lab.Loss) bool {
		return slices.ContainsFunc(changes, func(c time.Time) bool { return l.Begin.Before(c.Add(late)) && l.End.After(c.Add(-late)) })
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

// stage has something happen, and awaits what comes of it.
func (m *matrix) step(t *testing.T, s step) error {
	ctx, began := t.Context(), time.Now()
	if s.do != nil {
		if err := s.do(ctx, m); err != nil {
			return err
		}
	}
	done := time.Now()
	err := lab.Await(ctx, lab.Settle, fmt.Sprintf("claims of %v by %s, and of %v by %s", m.first, s.final.first, m.second, s.final.second), func() error {
		return errors.Join(m.wasClaimedBy(s.transient, began), m.isClaimedBy(s.final, done))
	})
	over := time.Now()
	if err != nil {
		return errors.Join(err, errors.New(m.speakerLogs(began)))
	}
	t.Logf("%s: after %s; n1's addresses: %s; n2's: %s", s.what, round(over.Sub(done)), m.coverage(m.first, began, over), m.coverage(m.second, began, over))
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
	// On a busy machine a speaker may be missed for a moment; that passes.
	return lab.Await(ctx, lab.Settle, "it to last", func() error { return m.isClaimedBy(s.final, over.Add(leaseDuration)) })
}

// shares says for how long more than one node claimed addresses, and none did.
func (m *matrix) coverage(vips pair, from, to time.Time) string {
	two4, none4 := m.claims.Coverage(vips[0], from, to)
	two6, none6 := m.claims.Coverage(vips[1], from, to)
	return fmt.Sprintf("claimed by two for %s (IPv6 %s), by no node for %s (%s)", round(two4), round(two6), round(none4), round(none6))
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// passed says whether addresses have been claimed by all of some nodes since a time.
func (m *matrix) wasClaimedBy(want outcome, since time.Time) error {
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

// history is what speakers have logged about one another, and about addresses.
func (m *matrix) speakerLogs(since time.Time) string {
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
func (m *matrix) repairAll(t testing.TB) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if m.frozen != "" {
		must(t, resume(ctx, m))
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
		return m.isClaimedBy(normal, began)
	}))
	m.resolve(t, ctx)
}

// ask has the host ask for n1's addresses, so that it knows who has them.
func (m *matrix) resolve(t testing.TB, ctx context.Context) {
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
	l, err := kube.UpLab(t.Context(), kube.LabOptions{ID: fmt.Sprintf("s%d", os.Getpid()), Source: "../../..", Fanfare: fanfare, Tools: tools, L2: true})
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
