package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// A dnsBed is CoreDNS in pods, behind one address on port 53 over UDP and TCP.
type dnsBed struct {
	t      *testing.T
	l      *Lab
	dns    *coreDNS
	svc    Service
	client *dnsClient
	only   string // the node whose pods are asked; empty: all
	vip    netip.AddrPort
}

// CoreDNS keeps answering through a rolling update, a move of its address to another node and a
// crash of the node's speaker. The fast path is left out: it ends flows of UDP a second after their
// pod begins to terminate, also while an answer is under way.
func TestNeighbourCoreDNS(t *testing.T) {
	l := laboratoryOfOwn(t, "n", func(*Options) {})
	servers := newCoreDNS(t, l)
	client := newDNSClient(t, l, "client", ClientAddr)
	modes := proxyModes(t)
	for _, tt := range []struct {
		mode     proxyMode
		affinity corev1.ServiceAffinity
	}{
		{modes[0], corev1.ServiceAffinityNone},
		{modes[0], corev1.ServiceAffinityClientIP},
		{modes[1], corev1.ServiceAffinityNone},
		{modes[1], corev1.ServiceAffinityClientIP},
	} {
		t.Run(tt.mode.name+", affinity "+string(tt.affinity), func(t *testing.T) {
			startInMode(t, l, tt.mode)
			servers.start(t, "p11", "p21", "p31")
			defer servers.killAll(t)
			b := &dnsBed{t: t, l: l, dns: servers, client: client,
				svc: Service{Name: "dns", DNS: true, Policy: localTraffic, Affinity: tt.affinity, Endpoints: At("p11", "p21", "p31")}}
			b.vip = port(serve(t, l, b.svc, NodeNames...), dnsPort)
			b.checkAnswers()
			t.Run("rolling update", b.on(b.rollingUpdate))
			t.Run("move", b.on(b.move))
			t.Run("affinity", b.on(b.checkAffinity))
			t.Run("crash", b.on(b.crash))
			t.Run("killed pod", b.on(b.killPod))
		})
	}
}

// on returns a step for t.Run.
func (b *dnsBed) on(step func()) func(*testing.T) {
	parent := b.t
	return func(t *testing.T) {
		b.t = t
		defer func() { b.t = parent }()
		step()
	}
}

// checkAnswers checks that large answers arrive over UDP, in fragments, and over TCP; that a client
// without EDNS can repeat a truncated one over TCP at the same address; and that pods see clients.
func (b *dnsBed) checkAnswers() {
	b.t.Helper()
	c, ctx := b.client.udp, b.t.Context()
	from := netip.AddrPortFrom(b.client.addrs[0], 0)
	local := b.svc.Policy == localTraffic
	for _, network := range []string{"udp", "tcp"} {
		for _, name := range []string{smallName, largeName} {
			if a, err := c.askDNS(ctx, network, from, b.vip, name); err != nil || local && a.Saw.Addr() != from.Addr() {
				b.t.Errorf("%s over %s: %v, %+v: want %s to be seen", name, network, err, a, from.Addr())
			}
		}
	}
	query := new(dns.Msg).SetQuestion(largeName, dns.TypeTXT)
	short, _, err := c.exchangeDNS(ctx, "udp", from, b.vip, query)
	await(b.t, err)
	long, _, err := c.exchangeDNS(ctx, "tcp", from, b.vip, query)
	await(b.t, err)
	if !short.Truncated || long.Truncated || long.Len() < largeSize {
		b.t.Errorf("without EDNS: truncated %v over UDP, %v over TCP with %d bytes", short.Truncated, long.Truncated, long.Len())
	}
}

// load asks while do runs, and checks that every query is answered.
func (b *dnsBed) load(do func(dnsLoad)) {
	b.t.Helper()
	began := time.Now()
	load := b.client.startLoad(b.t.Context(), b.vip)
	do(load)
	load.stop(b.t, func(r Report) []Loss {
		_, rest := r.splitInterrupted(b.l.Observer.RouteChanges(b.vip.Addr(), began, time.Now()))
		return rest
	})
}

func (b *dnsBed) put(endpoints ...Endpoint) {
	b.t.Helper()
	b.svc.Endpoints = endpoints
	await(b.t, b.l.Cluster.Put(b.svc))
}

// replace brings new pods up, and then ends old ones as Kubernetes does: they get SIGTERM when they
// are terminating endpoints, and are removed when they have ended.
func (b *dnsBed) replace(load dnsLoad, old, new []string) {
	b.t.Helper()
	var kept []Endpoint
	for _, e := range b.svc.Endpoints {
		if !slices.Contains(old, e.Pod) {
			kept = append(kept, e)
		}
	}
	kept = append(kept, At(new...)...)
	b.dns.start(b.t, new...)
	b.put(append(At(old...), kept...)...)
	// With affinity, clients of the old pods do not ask the new ones yet.
	await(b.t, pause(b.t.Context(), 300*time.Millisecond))
	ending := slices.Clone(kept)
	for _, pod := range old {
		ending = append(ending, Endpoint{pod, Terminating})
	}
	b.put(ending...)
	b.dns.terminate(b.t, old...)
	b.put(kept...)
	for _, e := range kept {
		if b.only == "" || NodeOf(e.Pod) == b.only {
			load.awaitPods(b.t, e.Pod)
		}
	}
}

// rollingUpdate replaces the pods of two nodes, one after the other.
func (b *dnsBed) rollingUpdate() {
	b.load(func(load dnsLoad) {
		load.awaitPods(b.t, "p11", "p21", "p31")
		b.replace(load, []string{"p11"}, []string{"p12"})
		b.replace(load, []string{"p21"}, []string{"p22"})
	})
}

// move moves the address of all nodes to n3 alone, and then to n1 alone.
func (b *dnsBed) move() {
	b.load(func(load dnsLoad) {
		b.replace(load, []string{"p12", "p22"}, nil)
		await(b.t, b.l.Router.AwaitNextHops(b.t.Context(), Settle, b.vip.Addr(), "n3"))
		b.replace(load, []string{"p31"}, []string{"p11", "p12"})
		await(b.t, b.l.Router.AwaitNextHops(b.t.Context(), Settle, b.vip.Addr(), "n1"))
	})
}

// checkAffinity checks that each client is answered by one pod with affinity, and by both without.
func (b *dnsBed) checkAffinity() {
	c := b.client.udp
	all := map[string]bool{}
	for _, client := range b.client.addrs {
		pods := map[string]bool{}
		for range 20 {
			a, err := c.askDNS(b.t.Context(), "udp", netip.AddrPortFrom(client, 0), b.vip, smallName)
			await(b.t, err)
			pods[a.Pod], all[a.Pod] = true, true
		}
		if affine := b.svc.Affinity == corev1.ServiceAffinityClientIP; affine != (len(pods) == 1) {
			b.t.Errorf("%s is answered by %v", client, pods)
		}
	}
	if len(all) != 2 {
		b.t.Errorf("the clients are answered by %v: want both pods", all)
	}
}

// crash kills the speaker of the only node that announces, and starts another one later.
func (b *dnsBed) crash() {
	b.load(func(load dnsLoad) {
		load.awaitPods(b.t, "p11", "p12")
		await(b.t, b.l.Speaker("n1").Kill())
		load.awaitPods(b.t, "p11", "p12")
		await(b.t, pause(b.t.Context(), time.Second))
		await(b.t, b.l.StartSpeakers(b.t.Context(), "n1"))
		load.awaitPods(b.t, "p11", "p12")
	})
}

// killPod kills CoreDNS of one pod without notice: its queries are lost until it is no longer an
// endpoint, and no others.
func (b *dnsBed) killPod() {
	run(b.t, b.l, "p12", "sysctl", "-w", "net.ipv4.icmp_ratemask=0") // the pod's kernel refuses each query
	load := b.client.startLoad(b.t.Context(), b.vip)
	load.awaitPods(b.t, "p11", "p12")
	b.dns.kill(b.t, "p12")
	killed := time.Now()
	await(b.t, pause(b.t.Context(), 300*time.Millisecond))
	b.put(At("p11")...)
	await(b.t, Await(b.t.Context(), Settle, "new flows to go to p11 alone", b.expectAlone))
	await(b.t, Await(b.t.Context(), Settle, "the end of the flows to p12", func() error { return b.expectNoFlow("n1", "p12") }))
	withdrawn := time.Now()
	load.awaitPods(b.t, "p11")
	await(b.t, pause(b.t.Context(), time.Second))
	load.stopKilled(b.t, killed, withdrawn)
}

// expectNoFlow returns an error while a node's conntrack sends datagrams of a client's port to a pod.
func (b *dnsBed) expectNoFlow(node, pod string) error {
	flows, err := b.l.Namespace(node).conntrack(b.vip.Addr())
	for _, f := range flows {
		if a, _ := netip.AddrFromSlice(f.Reverse.SrcIP); f.Forward.Protocol == unix.IPPROTO_UDP && a.Unmap() == PodAddr(pod, corev1.IPv4Protocol) {
			return fmt.Errorf("%s still has %v", node, f)
		}
	}
	return err
}

// expectAlone returns an error if a new flow goes to a pod that is gone. With affinity, some of the
// clients had that pod; without, one of so many flows would choose it.
func (b *dnsBed) expectAlone() error {
	for range 8 {
		for _, client := range b.client.addrs {
			if _, err := b.client.udp.askDNS(b.t.Context(), "udp", netip.AddrPortFrom(client, 0), b.vip, smallName); err != nil {
				return err
			}
		}
	}
	return nil
}
