package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// A dnsBed is CoreDNS in pods, behind one address for each Service, on port 53 over UDP and TCP.
type dnsBed struct {
	t        *testing.T
	l        *Lab
	dns      *coreDNS
	services []Service // alike but for the name and the affinity
	client   *dnsClient
	only     string // the node whose pods are asked; empty: all
	fast     bool   // nodes have the fast path
	vips     []netip.AddrPort
}

// CoreDNS keeps answering through a rolling update, a move of its address to another node and a
// crash of the node's speaker. Without the fast path, which takes no flows of a Service with affinity,
// the pods have two Services.
func TestNeighbourCoreDNS(t *testing.T) {
	l := laboratoryOfOwn(t, "n", func(*Options) {})
	servers := newCoreDNS(t, l)
	client := newDNSClient(t, l, "client", ClientAddr)
	for _, mode := range proxyModes(t) {
		t.Run(mode.name, func(t *testing.T) {
			startInMode(t, l, mode)
			servers.start(t, "p11", "p21")
			defer servers.killAll(t)
			b := &dnsBed{t: t, l: l, dns: servers, client: client, fast: mode.name == "fast path"}
			b.serve(corev1.ServiceAffinityNone)
			if !b.fast {
				b.serve(corev1.ServiceAffinityClientIP)
			}
			b.awaitFastPath("n1", "n2")
			b.checkAnswers()
			t.Run("rolling update", b.on(b.rollingUpdate))
			t.Run("move", b.on(b.move))
			b.awaitFastPath("n3")
			t.Run("affinity", b.on(b.checkAffinity))
			t.Run("crash", b.on(b.crash))
			t.Run("killed pod", b.on(b.killPod))
		})
	}
}

// serve adds a Service.
func (b *dnsBed) serve(affinity corev1.ServiceAffinity) {
	b.t.Helper()
	svc := Service{
		Name: "dns-" + strings.ToLower(string(affinity)), DNS: true, Policy: localTraffic, Affinity: affinity,
		Endpoints: At("p11", "p21"),
	}
	b.services = append(b.services, svc)
	b.vips = append(b.vips, port(serve(b.t, b.l, svc, "n1", "n2"), dnsPort))
}

// awaitFastPath waits until both protocols are on the fast path of some nodes, if these have one.
func (b *dnsBed) awaitFastPath(nodes ...string) {
	b.t.Helper()
	if !b.fast {
		return
	}
	for _, n := range nodes {
		await(b.t, Await(b.t.Context(), Settle, "both frontends on the fast path of "+n, func() error {
			text, err := b.l.Speaker(n).StatusText(b.t.Context())
			if err == nil && !strings.Contains(text, "bypassing netfilter: 2 of 2 frontends") {
				err = errors.New(text)
			}
			return err
		}))
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
	for _, vip := range b.vips {
		b.checkAnswersOf(vip)
	}
}

func (b *dnsBed) checkAnswersOf(vip netip.AddrPort) {
	b.t.Helper()
	c, ctx := b.client.udp[0], b.t.Context()
	from := netip.AddrPortFrom(b.client.addrs[0], 0)
	local := b.services[0].Policy == localTraffic
	for _, network := range []string{"udp", "tcp"} {
		for _, name := range []string{smallName, largeName} {
			if a, err := c.askDNS(ctx, network, from, vip, name); err != nil || local && a.Saw.Addr() != from.Addr() {
				b.t.Errorf("%s over %s: %v, %+v: want %s to be seen", name, network, err, a, from.Addr())
			}
		}
	}
	query := new(dns.Msg).SetQuestion(largeName, dns.TypeTXT)
	short, _, err := c.exchangeDNS(ctx, "udp", from, vip, query)
	await(b.t, err)
	long, _, err := c.exchangeDNS(ctx, "tcp", from, vip, query)
	await(b.t, err)
	if !short.Truncated || long.Truncated || long.Len() < largeSize {
		b.t.Errorf("without EDNS: truncated %v over UDP, %v over TCP with %d bytes", short.Truncated, long.Truncated,
			long.Len())
	}
}

// load asks while do runs, and checks that every query is answered.
func (b *dnsBed) load(do func(dnsLoad)) {
	b.t.Helper()
	began := time.Now()
	load := b.client.startLoad(b.t.Context(), b.vips...)
	do(load)
	load.stop(b.t, func(vip netip.Addr, r Report) []Loss {
		_, rest := r.splitInterrupted(b.l.Observer.RouteChanges(vip, began, time.Now()))
		return rest
	})
}

func (b *dnsBed) put(endpoints ...Endpoint) {
	b.t.Helper()
	for i := range b.services {
		b.services[i].Endpoints = endpoints
		await(b.t, b.l.Cluster.Put(b.services[i]))
	}
}

// replace brings new pods up, and then ends old ones as Kubernetes does: they get SIGTERM when they
// are terminating endpoints, and are removed when they have ended.
func (b *dnsBed) replace(load dnsLoad, old, new []string) {
	b.t.Helper()
	var kept []Endpoint
	for _, e := range b.services[0].Endpoints {
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

// rollingUpdate replaces the pods of both nodes, when all ports have flows to them.
func (b *dnsBed) rollingUpdate() {
	b.load(func(load dnsLoad) {
		load.awaitPods(b.t, "p11", "p21")
		load.awaitPorts(b.t)
		b.replace(load, []string{"p11", "p21"}, []string{"p12", "p22"})
	})
}

// move moves the addresses of both nodes to n3 alone.
func (b *dnsBed) move() {
	b.load(func(load dnsLoad) {
		b.replace(load, []string{"p12", "p22"}, []string{"p31", "p32"})
		for _, vip := range b.vips {
			await(b.t, b.l.Router.AwaitNextHops(b.t.Context(), Settle, vip.Addr(), "n3"))
		}
	})
}

// checkAffinity checks that each client is answered by one pod with affinity, and by both without.
func (b *dnsBed) checkAffinity() {
	for i, svc := range b.services {
		b.checkAffinityOf(svc, b.vips[i])
	}
}

func (b *dnsBed) checkAffinityOf(svc Service, vip netip.AddrPort) {
	c := b.client.udp[0]
	all := map[string]bool{}
	for _, client := range b.client.addrs {
		pods := map[string]bool{}
		for range 20 {
			a, err := c.askDNS(b.t.Context(), "udp", netip.AddrPortFrom(client, 0), vip, smallName)
			await(b.t, err)
			pods[a.Pod], all[a.Pod] = true, true
		}
		if affine := svc.Affinity == corev1.ServiceAffinityClientIP; affine != (len(pods) == 1) {
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
		load.awaitPods(b.t, "p31", "p32")
		await(b.t, b.l.Speaker("n3").Kill())
		load.awaitPods(b.t, "p31", "p32")
		await(b.t, pause(b.t.Context(), time.Second))
		await(b.t, b.l.StartSpeakers(b.t.Context(), "n3"))
		load.awaitPods(b.t, "p31", "p32")
	})
}

// killPod kills CoreDNS of one pod without notice: its queries are lost until it is no longer an
// endpoint, and no others.
func (b *dnsBed) killPod() {
	run(b.t, b.l, "p32", "sysctl", "-w", "net.ipv4.icmp_ratemask=0") // the pod's kernel refuses each query
	load := b.client.startLoad(b.t.Context(), b.vips...)
	load.awaitPods(b.t, "p31", "p32")
	b.dns.kill(b.t, "p32")
	killed := time.Now()
	await(b.t, pause(b.t.Context(), 300*time.Millisecond))
	b.put(At("p31")...)
	for _, vip := range b.vips {
		await(b.t, Await(b.t.Context(), Settle, "new flows to go to p31 alone",
			func() error { return b.expectAlone(vip) }))
		await(b.t, Await(b.t.Context(), Settle, "the end of the flows to p32",
			func() error { return b.expectNoFlow("n3", "p32", vip) }))
	}
	withdrawn := time.Now()
	load.awaitPods(b.t, "p31")
	await(b.t, pause(b.t.Context(), time.Second))
	load.stopKilled(b.t, killed, withdrawn)
}

// expectNoFlow returns an error while a node's conntrack sends datagrams of a client's port to a pod.
func (b *dnsBed) expectNoFlow(node, pod string, vip netip.AddrPort) error {
	flows, err := b.l.Namespace(node).conntrack(vip.Addr())
	for _, f := range flows {
		if a, _ := netip.AddrFromSlice(f.Reverse.SrcIP); f.Forward.Protocol == unix.IPPROTO_UDP &&
			a.Unmap() == PodAddr(pod, corev1.IPv4Protocol) {
			return fmt.Errorf("%s still has %v", node, f)
		}
	}
	return err
}

// expectAlone returns an error if a new flow goes to a pod that is gone. With affinity, some of the
// clients had that pod; without, one of so many flows would choose it.
func (b *dnsBed) expectAlone(vip netip.AddrPort) error {
	for range 8 {
		for _, client := range b.client.addrs {
			if _, err := b.client.udp[0].askDNS(b.t.Context(), "udp", netip.AddrPortFrom(client, 0), vip,
				smallName); err != nil {
				return err
			}
		}
	}
	return nil
}
