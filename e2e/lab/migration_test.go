package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

const metalLBByBGP = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: lan, namespace: metallb-system}
spec: {addresses: [192.0.2.0/24]}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: tor1, namespace: metallb-system}
spec: {myASN: 64497, peerASN: 64496, peerAddress: 198.51.100.1, holdTime: 3s, keepaliveTime: 1s, connectTime: 1s, enableGracefulRestart: true}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: all, namespace: metallb-system}
spec: {ipAddressPools: [lan]}
`

// A cluster moves from MetalLB to Fanfare node by node. With graceful restart of the old sessions the
// router keeps its routes, so that no request is lost, no route changes, and connections stay open.
func TestMigrationByGracefulRestart(t *testing.T) {
	m := startMigration(t, true)
	for _, n := range NodeNames {
		m.takeOver(n)
	}
	m.finish()
	if n := len(m.lab.Observer.RouteChanges(m.vip, m.began, time.Now())); n > 0 {
		t.Errorf("the route changed %d times: want it untouched", n)
	}
	if ended := m.ended(); ended > 0 {
		t.Errorf("%d of %d connections ended: want none", ended, len(m.open.All))
	}
	if r := m.load.Stop(); len(r.Lost) > 0 {
		t.Errorf("%s\n%s", r, r.Losses(m.began))
	} else {
		t.Log(r)
	}
}

// Without graceful restart, the router moves flows to other nodes twice for each node, and only
// requests in flight at these moments are lost. Each step can be taken back.
func TestMigrationWithoutGracefulRestart(t *testing.T) {
	m := startMigration(t, false)
	m.takeOver("n1")
	m.giveBack("n1")
	for _, n := range NodeNames {
		m.takeOver(n)
	}
	m.finish()
	changes := m.lab.Observer.RouteChanges(m.vip, m.began, time.Now())
	t.Logf("the route changed %d times; %d of %d connections ended", len(changes), m.ended(), len(m.open.All))
	expectNoLoss(t, m.lab, m.load, m.began)
}

// A migration is one from MetalLB's speakers, under load.
type migration struct {
	t    *testing.T
	lab  *Lab
	vip  netip.Addr
	old  map[string]*predecessor
	by   map[string]string // the label of each node
	load *Load
	open *Flows // from before the move
	// began is when the load began.
	began time.Time
}

// startMigration starts kube-proxy and MetalLB's speakers, then Fanfare's, which adopt the address and forward
// it, and have no session yet.
func startMigration(t *testing.T, graceful bool) *migration {
	t.Helper()
	with := options(t)
	letter := map[bool]string{true: "g", false: "m"}[graceful]
	l, ctx := buildLab(t, with, letter), t.Context()
	m := &migration{
		t: t, lab: l, vip: netip.MustParseAddr("192.0.2.77"), old: map[string]*predecessor{}, by: map[string]string{},
	}
	await(t, errors.Join(l.Cluster.Delete("pool"), l.Cluster.Delete("tor1"),
		startKubeProxy(ctx, l, m.vip, "p11", "p21")))
	await(t, putAdopted(l, Service{Name: "moves", Endpoints: At("p11", "p21")}, m.vip))
	for _, n := range NodeNames {
		m.old[n] = &predecessor{lab: l, node: n, vip: m.vip, graceful: graceful}
		await(t, m.old[n].start())
	}
	await(t, l.Router.AwaitNextHops(ctx, Settle, m.vip, NodeNames...))
	m.began = time.Now()
	m.load = l.Client.StartLoad(ctx, port(m.vip, 80))
	var err error
	m.open, err = l.Client.OpenFlows(ctx, 12, port(m.vip, 7))
	await(t, err)
	t.Cleanup(func() { m.open.Close() })
	await(t, convert(ctx, l, metalLBByBGP, "--node-label", announcerLabel+"=fanfare"))
	for _, n := range NodeNames {
		await(t, l.Speaker(n).Start())
	}
	await(t, Await(ctx, Settle, "all speakers to forward", func() error { return forwardingOnly(ctx, l, m.vip) }))
	return m
}

// ended counts the connections that ended.
func (m *migration) ended() (n int) {
	m.t.Helper()
	await(m.t, m.open.AwaitLines(m.t.Context(), 2))
	for _, f := range m.open.All {
		if f.Err() != nil {
			n++
		}
	}
	return n
}

// takeOver is the step of one node: the old speaker leaves, then Fanfare's takes the session.
func (m *migration) takeOver(node string) {
	m.t.Helper()
	m.by[node] = "none" // MetalLB's speaker is for nodes without the label
	await(m.t, errors.Join(announcers(m.lab, m.by), m.old[node].leave()))
	m.awaitLeft(node)
	m.by[node] = "fanfare"
	await(m.t, announcers(m.lab, m.by))
	await(m.t, m.lab.AwaitSessions(m.t.Context(), node))
	await(m.t, m.lab.Router.AwaitNextHops(m.t.Context(), Settle, m.vip, NodeNames...))
	await(m.t, m.load.AwaitAnswered(m.t.Context(), time.Now()))
}

// awaitLeft waits until the router has no session with the node, and for some of the time that a pod takes to
// leave. With graceful restart the router still sends to the node; otherwise it sends to the others.
func (m *migration) awaitLeft(node string) {
	m.t.Helper()
	ctx := m.t.Context()
	await(m.t, Await(ctx, Settle, "the router to have no session with "+node, func() error {
		up, err := m.lab.Router.Established(ctx)
		if err == nil && slices.Contains(up, node) {
			err = fmt.Errorf("established: %v", up)
		}
		return err
	}))
	hops := slices.Clone(NodeNames)
	if !m.old[node].graceful {
		hops = slices.DeleteFunc(hops, func(n string) bool { return n == node })
	}
	await(m.t, errors.Join(m.lab.Router.AwaitNextHops(ctx, Settle, m.vip, hops...), pause(ctx, 700*time.Millisecond)))
	await(m.t, m.lab.Router.AwaitNextHops(ctx, Settle, m.vip, hops...))
}

// giveBack takes the step of a node back.
func (m *migration) giveBack(node string) {
	m.t.Helper()
	m.by[node] = ""
	await(m.t, announcers(m.lab, m.by))
	await(m.t, Await(m.t.Context(), Settle, node+" to close its session", func() error {
		st, err := m.lab.Speaker(node).Status(m.t.Context())
		if err == nil && len(st.BGP.Sessions) > 0 {
			err = fmt.Errorf("sessions %v", st.BGP.Sessions)
		}
		return err
	}))
	await(m.t, m.old[node].start())
	await(m.t, m.lab.Router.AwaitNextHops(m.t.Context(), Settle, m.vip, NodeNames...))
	await(m.t, m.load.AwaitAnswered(m.t.Context(), time.Now()))
}

// finish ends the move: the objects are for all nodes, and nodes need no label. That must not reset a session.
func (m *migration) finish() {
	m.t.Helper()
	before := time.Now()
	await(m.t, convert(m.t.Context(), m.lab, metalLBByBGP))
	await(m.t, announcers(m.lab, nil))
	await(m.t, m.load.AwaitAnswered(m.t.Context(), time.Now()))
	await(m.t, m.lab.AwaitSessions(m.t.Context(), NodeNames...))
	if changes := m.lab.Observer.RouteChanges(m.vip, before, time.Now()); len(changes) > 0 {
		m.t.Errorf("the end of the move changed the route: %v", changes)
	}
	for _, n := range NodeNames {
		text, err := m.lab.Speaker(n).StatusText(m.t.Context())
		if await(m.t, err); !strings.Contains(text, m.vip.String()) {
			m.t.Errorf("%s does not have %s:\n%s", n, m.vip, text)
		}
	}
}

const metalLBByL2 = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: lan, namespace: metallb-system}
spec: {addresses: [198.51.100.200-198.51.100.250]}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: all, namespace: metallb-system}
spec: {interfaces: [eth1]}
`

// Over Layer 2 all nodes move at once, since two programs that elect would answer twice. Until a host
// learns of the new node, it sends to the former one, where kube-proxy forwards. So no new connection is lost.
func TestMigrationOverLayer2(t *testing.T) {
	l, ctx := buildLab(t, options(t).ForL2("../containerlab"), "k"), t.Context()
	vip := netip.MustParseAddr("198.51.100.200")
	await(t, errors.Join(l.Cluster.Delete("pool"), startKubeProxy(ctx, l, vip, "p11", "p21")))
	await(t, putAdopted(l, Service{Name: "moves", Endpoints: At("p11", "p21")}, vip))
	await(t, answerByKernel(ctx, l, "n1", vip))
	expectOnlyInterrupted(t, l, []netip.Addr{vip}, func() {
		await(t, awaitTakeover(t, l, []netip.Addr{vip}, "n1"))
		await(t, convert(ctx, l, metalLBByL2, "--node-label", announcerLabel+"=fanfare"))
		await(t, l.StartL2Speakers(ctx, NodeNames...))
		await(t, Await(ctx, Settle, "all speakers to forward", func() error { return forwardingOnly(ctx, l, vip) }))

		await(t, stopAnswering(ctx, l, "n1", vip))
		await(t, announcers(l, map[string]string{"n1": "fanfare", "n2": "fanfare", "n3": "fanfare"}))
		owner, err := l.AwaitOwner(ctx, vip)
		await(t, err)
		await(t, awaitTakeover(t, l, []netip.Addr{vip}, owner))
		await(t, pause(ctx, 500*time.Millisecond))

		await(t, announcers(l, nil)) // back to the former program
		await(t, answerByKernel(ctx, l, "n1", vip))
		await(t, Await(ctx, Settle, "no speaker to answer", func() error { return forwardingOnly(ctx, l, vip) }))
		await(t, pause(ctx, 500*time.Millisecond))
		await(t, stopAnswering(ctx, l, "n1", vip))
		await(t, convert(ctx, l, metalLBByL2))
		_, err = l.AwaitOwner(ctx, vip)
		await(t, err)
		await(t, pause(ctx, 500*time.Millisecond))
	})
}

// answerByKernel stands in for MetalLB's speaker over Layer 2: the node's kernel answers ARP requests for an address
// that is on no interface. Proxy ARP wants a route by another interface; kube-proxy's rules apply before.
func answerByKernel(ctx context.Context, l *Lab, node string, vip netip.Addr) error {
	n := l.Namespace(node)
	var errs []error
	for _, args := range [][]string{
		{"sysctl", "-qw", "net.ipv4.neigh.eth1.proxy_delay=0"},
		{"ip", "route", "replace", vip.String() + "/32", "dev", "pod1"},
		{"ip", "neigh", "replace", "proxy", vip.String(), "dev", "eth1"},
	} {
		_, err := n.Run(ctx, args...)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func stopAnswering(ctx context.Context, l *Lab, node string, vip netip.Addr) error {
	_, err := l.Namespace(node).Run(ctx, "ip", "neigh", "del", "proxy", vip.String(), "dev", "eth1")
	_, err2 := l.Namespace(node).Run(ctx, "ip", "route", "del", vip.String()+"/32", "dev", "pod1")
	return errors.Join(err, err2)
}

// forwardingOnly returns an error unless all speakers forward the address and none announces it.
func forwardingOnly(ctx context.Context, l *Lab, vip netip.Addr) error {
	for _, n := range NodeNames {
		st, err := l.Speaker(n).Status(ctx)
		if err != nil {
			return err
		}
		forwarded := false
		for _, a := range st.Addresses {
			if a.Address == vip && a.Announced {
				return fmt.Errorf("%s announces it", n)
			}
			forwarded = forwarded || a.Address == vip && a.Programmed
		}
		if !forwarded || len(st.BGP.Sessions) > 0 {
			return fmt.Errorf("%s: %+v", n, st)
		}
	}
	return nil
}
