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

// A failureCase is one combination of failures. There are two addresses of each family: n1
// should announce two, one of which gets requests, and n2 the others.
type failureCase struct {
	name          string
	apiServerDown bool // the API server is down
	steps         []step
	// lossy: nodes do not reach all pods, or no longer the host, so that requests would be
	// lost and none are sent. Otherwise only requests in flight may be lost, when the host
	// switches to another node.
	lossy bool
}

// A step is one event and its expected outcome.
type step struct {
	what string
	do   func(context.Context, *matrix) error
	// transient are the nodes that must claim the addresses at some time; in the end it is
	// final.
	transient, final outcome
	// stable: the outcome lasts as long as nothing else happens. The test waits for the
	// lifetime of a Lease.
	stable bool
	// leftOut lists the nodes whose pods a node leaves out, by that node.
	leftOut map[string][]string
}

// An outcome says which nodes claim n1's addresses and n2's: "n1+n2" is both nodes, "n2|n3"
// either, and empty any.
type outcome struct{ first, second string }

var (
	normal     = outcome{"n1", "n2"}
	withoutN1  = outcome{"n2|n3", "n2"} // all but n1
	twoClaim   = outcome{"n1+n2|n1+n3", "n1+n2"}
	twoBriefly = outcome{"n1+n2|n1+n3", ""} // as twoClaim, but n1 may detect that n3 is alive before it detects that n2 is dead
)

// The order of failureCases takes the API server down and up only once.
var failureCases = []failureCase{
	{name: "membership blocked", steps: []step{
		{what: "block port 7946 of n1", do: blockMembership, transient: twoBriefly, final: normal, stable: true},
		{what: "freeze n1's speaker, so that its Lease expires", do: freeze, final: withoutN1},
		{what: "resume it", do: resume, final: normal},
		{what: "stop n1's speaker", do: terminate, final: withoutN1},
		{what: "start it", do: start, final: normal},
		{what: "open the port", do: repair, final: normal},
	}},
	{name: "membership blocked, link down", lossy: true, steps: []step{
		{what: "block port 7946 of n1", do: blockMembership, transient: twoBriefly, final: normal},
		{what: "take n1's link down; it renews its Lease over another", do: disconnect, final: withoutN1},
		{what: "take the link up", do: reconnect, final: normal},
		{what: "open the port", do: repair, final: normal},
	}},
	{name: "segment partitioned", lossy: true, steps: []step{
		{what: "separate n1 from the other nodes, not from hosts", do: partition, transient: twoBriefly, final: normal},
		{what: "end the partition", do: repair, final: normal},
	}},
	{name: "segment partitioned, no Leases", lossy: true, steps: []step{
		{what: "restart all speakers without Leases", do: restartWith("--lease-interval", "0"), final: normal},
		{what: "separate n1 from the other nodes, not from hosts", do: partition, final: twoClaim, stable: true},
		{what: "end the partition", do: repair, final: normal},
		{what: "restart all speakers with Leases", do: restartWith(usualFlags...), final: normal},
	}},
	{name: "membership blocked from the start", lossy: true, steps: []step{
		{what: "stop all speakers, block port 7946 everywhere, start them", do: restartBlocked, final: normal, stable: true},
		{what: "open the port", do: repair, final: normal},
	}},
	{name: "API server unreachable for one node", steps: []step{
		{what: "block the API server's address on n1", do: blockAPIServer, final: normal, stable: true},
		{what: "block port 7946 too: no node sees that n1 is alive", do: blockBoth, final: twoClaim, stable: true,
			leftOut: map[string][]string{"n1": nil, "n2": {"n1"}, "n3": {"n1"}}},
		{what: "open both", do: repair, final: normal},
	}},
	{name: "speaker frozen", steps: []step{
		{what: "freeze n1's speaker", do: freeze, final: withoutN1},
		{what: "resume it", do: resume, final: normal},
	}},
	{name: "speaker frozen, address assigned to another node", steps: []step{
		{what: "freeze n1's speaker", do: freeze, final: withoutN1},
		{what: "assign its address to n2", do: assignTo("n2"), final: outcome{"n2", "n2"}},
		{what: "resume n1's speaker", do: resume, final: outcome{"n2", "n2"}},
		{what: "assign the address to n1", do: assignTo("n1"), final: normal},
	}},
	{name: "speaker frozen, membership blocked when it resumes", steps: []step{
		{what: "freeze n1's speaker", do: freeze, final: withoutN1},
		{what: "block its port and resume it", do: blockMembershipAndResume, final: normal},
		{what: "open the port", do: repair, final: normal},
	}},
	{name: "link down", lossy: true, steps: []step{
		{what: "take n1's link down", do: disconnect, final: withoutN1, stable: true},
		{what: "take the link up", do: reconnect, final: normal},
	}},

	{name: "API server down", apiServerDown: true, steps: []step{
		{what: "no other failure", final: normal, stable: true},
		{what: "kill n1's speaker", do: kill, final: withoutN1},
		{what: "start it", do: start, final: normal},
	}},
	{name: "API server down, speaker frozen", apiServerDown: true, steps: []step{
		{what: "freeze n1's speaker", do: freeze, final: withoutN1},
		{what: "resume it", do: resume, final: normal},
	}},
	{name: "API server down, frozen speaker's address moves", apiServerDown: true, lossy: true, steps: []step{
		{what: "take n2's link down", do: disconnectSecond, final: outcome{"n1", "n1|n3"}},
		{what: "freeze the speaker that announces its address now", do: freezeSecond, final: outcome{"", "n1|n3"}},
		{what: "take n2's link up", do: reconnect, final: outcome{"", "n2"}},
		{what: "resume the frozen speaker", do: resume, final: normal},
	}},
	{name: "API server down, link down", apiServerDown: true, lossy: true, steps: []step{
		{what: "take n1's link down", do: disconnect, final: withoutN1},
		{what: "take the link up", do: reconnect, final: normal},
	}},
	{name: "API server down, speaker frozen, membership blocked when it resumes", apiServerDown: true, steps: []step{
		{what: "freeze n1's speaker", do: freeze, final: withoutN1},
		{what: "block its port and resume it", do: blockMembershipAndResume, final: twoClaim},
		{what: "open the port", do: repair, final: normal},
	}},
	{name: "API server down, segment partitioned", apiServerDown: true, lossy: true, steps: []step{
		{what: "separate n1 from the other nodes, not from hosts", do: partition, final: twoClaim, leftOut: map[string][]string{"n1": nil, "n2": {"n1"}, "n3": {"n1"}}},
		{what: "end the partition", do: repair, final: normal},
	}},
	{name: "API server down, membership blocked", apiServerDown: true, steps: []step{
		{what: "block port 7946 of n1", do: blockMembership, final: twoClaim, stable: true},
		{what: "start the API server", do: restore, final: normal},
		{what: "open the port", do: repair, final: normal},
	}},
}

const (
	// leaseInterval is the minimum. A Lease expires after three intervals.
	leaseInterval = time.Second
	leaseDuration = 3 * leaseInterval
)

// usualFlags are the speakers' flags in the matrix.
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

// A matrix is the laboratory with its recorded claims.
type matrix struct {
	*kube.Lab
	claims        *lab.Claims
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
	return m.Cluster.Put(lab.Service{Name: name, Ask: vips[:], Families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
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
		t.Errorf("the host moved at %v, and requests were lost at other times:\n%s", changes, lab.Report{Lost: lost}.Losses(r.Began))
	}
}

// unexplained returns the losses that no move of the host explains. The new node resets
// most connections in flight; where it has a conntrack entry of an earlier connection from
// the port, they time out. A busy kernel may report a changed entry late.
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

// step causes an event and waits for the outcome.
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
	// On a busy machine a speaker may be marked dead for a moment.
	return lab.Await(ctx, lab.Settle, "the outcome to last", func() error { return m.isClaimedBy(s.final, over.Add(leaseDuration)) })
}

// coverage describes how long several nodes claimed addresses, and no node did.
func (m *matrix) coverage(vips pair, from, to time.Time) string {
	two4, none4 := m.claims.Coverage(vips[0], from, to)
	two6, none6 := m.claims.Coverage(vips[1], from, to)
	return fmt.Sprintf("claimed by several nodes for %s (IPv6 %s), by none for %s (%s)", round(two4), round(two6), round(none4), round(none6))
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// wasClaimedBy returns an error unless all nodes of an outcome have claimed the addresses
// since a time.
func (m *matrix) wasClaimedBy(want outcome, since time.Time) error {
	for vip, nodes := range m.of(want) {
		got, err := m.claims.Since(vip, since)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(alternatives(nodes), func(all []string) bool {
			return !slices.ContainsFunc(all, func(n string) bool { return !slices.Contains(got, n) })
		}) {
			return fmt.Errorf("%s was claimed by %v only", vip, got)
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
		if !slices.ContainsFunc(got, func(node string) bool { mac, err := m.MAC(node); return err == nil && mac == n.MAC }) {
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
		for line := range strings.Lines(m.Speaker(n).Log()) {
			stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil && at.After(since) {
				fmt.Fprintf(&b, "%+.3f s %s: %s", at.Sub(since).Seconds(), n, rest)
			}
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
			if len(st.Members.Nodes) != len(lab.NodeNames) || slices.ContainsFunc(st.Members.Nodes, func(x struct{ Node, State string }) bool { return x.State != "alive" }) {
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
		t.Skip("takes a minute")
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
