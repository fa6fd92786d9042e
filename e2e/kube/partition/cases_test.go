package partition

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/lab"
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
	// final are the nodes that must claim the addresses in the end. Before that, several may.
	final outcome
	// dead is a node that all others must mark dead at some time, by the membership alone.
	dead string
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
	normal    = outcome{"n1", "n2"}
	withoutN1 = outcome{"n2|n3", "n2"} // all but n1
	twoClaim  = outcome{"n1+n2|n1+n3", "n1+n2"}
)

// The order of failureCases takes the API server down and up only once.
var failureCases = []failureCase{
	{name: "membership blocked", steps: []step{
		{what: "block port 7874 of n1", do: blockMembership, dead: "n1", final: normal, stable: true},
		{what: "freeze n1's speaker, so that its Lease expires", do: freeze, final: withoutN1},
		{what: "resume it", do: resume, final: normal},
		{what: "stop n1's speaker", do: terminate, final: withoutN1},
		{what: "start it", do: start, final: normal},
		{what: "open the port", do: repair, final: normal},
	}},
	{name: "membership blocked, link down", lossy: true, steps: []step{
		{what: "block port 7874 of n1", do: blockMembership, dead: "n1", final: normal},
		{what: "take n1's link down; it renews its Lease over another", do: disconnect, final: withoutN1},
		{what: "take the link up", do: reconnect, final: normal},
		{what: "open the port", do: repair, final: normal},
	}},
	{name: "segment partitioned", lossy: true, steps: []step{
		{what: "separate n1 from the other nodes, not from hosts", do: partition, dead: "n1", final: normal},
		{what: "end the partition", do: repair, final: normal},
	}},
	{name: "segment partitioned, no Leases", lossy: true, steps: []step{
		{what: "restart all speakers without Leases", do: restartWith("--lease-interval", "0"), final: normal},
		{what: "separate n1 from the other nodes, not from hosts", do: partition, final: twoClaim, stable: true},
		{what: "end the partition", do: repair, final: normal},
		{what: "restart all speakers with Leases", do: restartWith(usualFlags...), final: normal},
	}},
	{name: "membership blocked from the start", lossy: true, steps: []step{
		{what: "stop all speakers, block port 7874 everywhere, start them", do: restartBlocked, final: normal,
			stable: true},
		{what: "open the port", do: repair, final: normal},
	}},
	{name: "API server unreachable for one node", steps: []step{
		{what: "block the API server's address on n1", do: blockAPIServer, final: normal, stable: true},
		{what: "block port 7874 too: no node sees that n1 is alive", do: blockBoth, final: twoClaim, stable: true,
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
		{what: "separate n1 from the other nodes, not from hosts", do: partition, final: twoClaim,
			leftOut: map[string][]string{"n1": nil, "n2": {"n1"}, "n3": {"n1"}}},
		{what: "end the partition", do: repair, final: normal},
	}},
	{name: "API server down, membership blocked", apiServerDown: true, steps: []step{
		{what: "block port 7874 of n1", do: blockMembership, final: twoClaim, stable: true},
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

func blockMembership(ctx context.Context, m *matrix) error { return m.Block(ctx, "n1", []uint16{7874}) }
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
	return m.Block(ctx, "n1", []uint16{7874}, m.Kubernetes.Addr())
}
func kill(_ context.Context, m *matrix) error      { return m.Speaker("n1").Kill() }
func terminate(_ context.Context, m *matrix) error { return m.Speaker("n1").Terminate() }
func start(ctx context.Context, m *matrix) error   { return m.StartL2Speakers(ctx, "n1") }
func disconnectSecond(ctx context.Context, m *matrix) error {
	return m.Disconnect(ctx, "n2")
}

func restartBlocked(ctx context.Context, m *matrix) (err error) {
	for _, n := range lab.NodeNames {
		err = errors.Join(err, m.Speaker(n).Terminate(), m.Block(ctx, n, []uint16{7874}))
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
