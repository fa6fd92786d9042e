package lab

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestNeighbourCoreDNSL2 is TestNeighbourCoreDNS over layer 2, where one node answers for the
// address: a move by the annotation, and a crash of that node's speaker.
func TestNeighbourCoreDNSL2(t *testing.T) {
	l := laboratoryL2(t)
	servers := newCoreDNS(t, l)
	client := newDNSClient(t, l, "host", netip.MustParseAddr("198.51.100.50"))
	for _, tt := range []struct {
		mode     int
		policy   corev1.ServiceExternalTrafficPolicy
		affinity corev1.ServiceAffinity
	}{
		{0, localTraffic, corev1.ServiceAffinityNone},
		{1, clusterTraffic, corev1.ServiceAffinityClientIP},
	} {
		mode := proxyModes(t)[tt.mode]
		t.Run(mode.name+", "+string(tt.policy)+", affinity "+string(tt.affinity), func(t *testing.T) {
			startL2InMode(t, l, mode)
			servers.start(t, "p11", "p21", "p31")
			defer servers.killAll(t)
			b := &dnsBed{t: t, l: l, dns: servers, client: client,
				services: []Service{pinnedTo(Service{Name: "dns", DNS: true, Policy: tt.policy, Affinity: tt.affinity,
					Endpoints: At("p11", "p21", "p31")}, "n1")}}
			vips := serveL2(t, l, b.services...)
			b.vips = []netip.AddrPort{port(vips[0], dnsPort)}
			awaitOwners(t, l, vips, "n1")
			if tt.policy == localTraffic {
				b.only = "n1"
			}
			b.checkAnswers()
			t.Run("rolling update", b.on(func() {
				b.loadL2(func(load dnsLoad) { b.replace(load, []string{"p11"}, []string{"p12"}) })
			}))
			t.Run("move", b.on(func() {
				b.loadL2(func(load dnsLoad) {
					b.pin("n2")
					load.awaitPods(b.t, "p21")
					await(b.t, pause(b.t.Context(), time.Second))
				})
			}))
			t.Run("crash", b.on(b.crashL2))
		})
	}
}

// startL2InMode starts or restarts the speakers of all nodes with these flags.
func startL2InMode(t *testing.T, l *Lab, mode proxyMode) {
	t.Helper()
	for _, n := range NodeNames {
		await(t, l.Speaker(n).Terminate())
		l.Speaker(n).Flags = mode.flags
	}
	await(t, l.StartL2Speakers(t.Context(), NodeNames...))
}

// loadL2 is load: the host sends to another node when its neighbour entry changes.
func (b *dnsBed) loadL2(do func(dnsLoad)) {
	b.t.Helper()
	moves, err := b.l.WatchNeighbours()
	await(b.t, err)
	defer moves.Close()
	load := b.client.startLoad(b.t.Context(), b.vips...)
	load.awaitAnswers(b.t)
	do(load)
	load.stop(b.t, func(vip netip.Addr, r Report) []Loss {
		changes, err := moves.Of(vip)
		await(b.t, err)
		return unexplained(r, changes)
	})
}

// pin moves the address to a node.
func (b *dnsBed) pin(node string) {
	b.t.Helper()
	b.services[0] = pinnedTo(b.services[0], node)
	b.put(b.services[0].Endpoints...)
	awaitOwners(b.t, b.l, []netip.Addr{b.vips[0].Addr()}, node)
}

// crashL2 kills the speaker of the node that answers for the address: another one takes it over,
// and gives it back.
func (b *dnsBed) crashL2() {
	vips := []netip.Addr{b.vips[0].Addr()}
	b.loadL2(func(load dnsLoad) {
		await(b.t, b.l.Speaker("n2").Kill())
		await(b.t, awaitTakeover(b.t, b.l, vips, "n1", "n3"))
		load.awaitAnswers(b.t)
		await(b.t, pause(b.t.Context(), time.Second))
		await(b.t, startAgain(b.l.Speaker("n2")))
		awaitOwners(b.t, b.l, vips, "n2")
		load.awaitAnswers(b.t)
	})
}
