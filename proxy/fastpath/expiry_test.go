package fastpath

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
)

func TestFlowLifetime(t *testing.T) {
	for _, tt := range []struct {
		protocol    uint8
		there, back uint32
		want        uint32
	}{
		{UDP, flowOpen, 0, 30},
		{UDP, flowOpen, flowOpen, 120},
		{TCP, 0, 0, 60},
		{TCP, 0, flowOpen, 60},
		{TCP, flowOpen, flowOpen, 432000},
		{TCP, flowOpen | flowFIN, flowOpen, 120},
		{TCP, flowOpen, flowOpen | flowFIN, 120},
		{TCP, flowOpen | flowFIN, flowOpen | flowFIN, 30},
		{TCP, flowOpen | flowRST, flowOpen | flowFIN, 10},
		{TCP, flowOpen, flowOpen | flowRST, 10},
	} {
		if got := timeoutOf(tt.protocol, tt.there, tt.back, false); got != tt.want {
			t.Errorf("protocol %d, %d, %d: %d s; want %d", tt.protocol, tt.there, tt.back, got, tt.want)
		}
	}
}

func TestFlowVerdicts(t *testing.T) {
	vip, gone, mine := port("vip", 0, 80), netip.MustParseAddrPort("192.0.2.77:80"),
		netip.MustParseAddrPort("198.51.100.1:80")
	s := State{
		Owned: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		VIPs: []*VIP{{Addr: vip.Addr(), Frontends: []Frontend{
			{Addr: vip, Protocol: TCP, Backends: []Backend{{Addr: port("pod1", 0, 1)}},
				Draining: []netip.AddrPort{port("pod2", 0, 1)}},
			{Addr: vip, Protocol: UDP, Backends: []Backend{{Addr: port("pod1", 0, 1)}},
				Draining: []netip.AddrPort{port("pod2", 0, 1)}, Replying: []netip.AddrPort{port("pod4", 0, 1)},
				Sources: []netip.Prefix{netip.MustParsePrefix("10.0.1.2/32")}},
		}}},
	}
	for _, tt := range []struct {
		client   string
		vip      netip.AddrPort
		pod      string
		protocol uint8
		want     verdict
	}{
		{"client", vip, "pod1", TCP, stays},
		{"client", vip, "pod2", TCP, endsUnanswered},
		{"client", vip, "pod3", TCP, ends},
		{"client", vip, "pod2", UDP, stays},
		{"client", vip, "pod3", UDP, ends},
		{"client", vip, "pod4", UDP, repliesOnly},
		{"client2", vip, "pod1", UDP, ends},
		{"client2", vip, "pod4", UDP, ends},
		{"client", netip.AddrPortFrom(vip.Addr(), 81), "pod1", TCP, stays},
		{"client", gone, "pod1", TCP, ends},
		{"client", mine, "pod1", TCP, stays},
	} {
		f := Flow{Client: port(tt.client, 0, 5), VIP: tt.vip, Backend: port(tt.pod, 0, 1), Protocol: tt.protocol}
		if got := s.judge(&f); got != tt.want {
			t.Errorf("%+v: %d; want %d", f, got, tt.want)
		}
	}
}

// A timeout deletes both entries of a flow, and no other flow.
func TestFlowsExpire(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		vip := port("vip", 0, 80)
		pass := func(from uint16, packets ...packet) {
			for _, k := range packets {
				if k.from, k.to = port("client", 0, from), vip; k.ttl == 2 { // a reply
					k.from, k.to = port("pod1", 0, 8080), k.from
					l.comeBack(p, "cali1", k.ip())
					continue
				}
				l.arrive(p, k.ip())
			}
		}
		tcp := func(flags, ttl uint8) packet { return packet{protocol: TCP, flags: flags, ttl: ttl} }
		open := []packet{tcp(syn, 0), tcp(syn|ack, 2), tcp(ack, 0)}
		pass(1, open[0])
		pass(2, open...)
		pass(3, append(open, tcp(fin|ack, 0), tcp(fin|ack, 2))...)
		pass(4, append(open, tcp(rst, 2))...)
		pass(5, packet{protocol: UDP})
		pass(6, packet{protocol: UDP}, packet{protocol: UDP, ttl: 2})
		pass(7, append(open, tcp(rst, 0), tcp(ack, 0))...) // a reset that the endpoint ignored
		left := func() string {
			p.walk()
			s := ""
			have := l.flows(p)
			for n := range uint16(8) {
				if _, is := have[port("client", 0, n)]; is {
					s += fmt.Sprint(n)
				}
			}
			return s
		}
		for _, tt := range []struct {
			age  uint32
			want string
		}{{0, "1234567"}, {11, "123567"}, {31, "1267"}, {61, "267"}, {121, "27"}, {86400, "27"}, {432001, ""}} {
			l.age(p, tt.age)
			if got := left(); got != tt.want {
				t.Errorf("after %d s: %s; want %s", tt.age, got, tt.want)
			}
		}
		var key kernelTuple
		var value kernelFlow
		if all := p.kernel.Flows.Iterate(); all.Next(&key, &value) {
			t.Errorf("%+v remains", key)
		}
	})
}

// Half-open flows to a draining backend end, so that the client's next SYN gets another
// backend. Established connections continue.
func TestSYNToDraining(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		vip, pod := port("vip", 0, 80), port("pod1", 0, 8080)
		asked, open := port("client", 0, 1), port("client", 0, 2)
		l.arrive(p, packet{from: asked, to: vip, protocol: TCP, flags: syn}.ip())
		l.arrive(p, packet{from: open, to: vip, protocol: TCP, flags: syn}.ip())
		l.comeBack(p, "cali1", packet{from: pod, to: open, protocol: TCP, flags: syn | ack}.ip())
		l.set(p, each(state("pod2"), func(f *Frontend) {
			if f.Addr == vip && f.Protocol == TCP {
				f.Draining = []netip.AddrPort{pod}
			}
		}))
		l.await("the SYN to be forgotten", func() bool { _, is := l.flows(p)[asked]; return !is })
		if _, is := l.flows(p)[open]; !is {
			t.Error("the connection ended")
		}
	})
}

// A client's next datagram leaves a draining backend, whose replies still pass: until no more come, or
// the State forbids them.
func TestRepliesOfDraining(t *testing.T) {
	for _, family := range families {
		t.Run([]string{"IPv4", "IPv6"}[family], func(t *testing.T) {
			inNamespace(t, func(t *testing.T, l *lab) { l.repliesOfDraining(family) })
		})
	}
}

func (l *lab) repliesOfDraining(family int) {
	p := l.path()
	vip, pod, client := port("vip", family, 80), port("pod1", family, 8080), port("client", family, 5)
	expectRequest := func(when, to string) {
		l.t.Helper()
		if _, out := l.arrive(p, packet{from: client, to: vip, protocol: UDP}.ip()); nameAt(read(l.t, out).to.Addr()) !=
			to {
			l.t.Errorf("%s: a request to %s; want %s", when, read(l.t, out).to, to)
		}
	}
	expectReply := func(when string, from netip.AddrPort) {
		l.t.Helper()
		if _, out := l.comeBack(p, "cali1", packet{from: pod, to: client, protocol: UDP}.ip()); read(l.t,
			out).from != from {
			l.t.Errorf("%s: a reply from %s; want %s", when, read(l.t, out).from, from)
		}
	}
	drain := func() {
		l.set(p, state("pod1"))
		expectRequest("before", "pod1")
		l.age(p, 2*shortestTimeout)
		expectRequest("after a rest", "pod1")
		l.set(p, each(state("pod2"), func(f *Frontend) {
			if f.Addr == vip && f.Protocol == UDP {
				f.Replying = []netip.AddrPort{pod}
			}
		}))
		l.await("the flow to leave", func() bool { return len(l.flows(p)) == 0 })
		p.walk()
		p.mu.Lock()
		attached := p.attachments.links[hook{uint32(l.link("cali1").Attrs().Index), inward}]
		p.mu.Unlock()
		if attached == nil {
			l.t.Error("the program for replies is detached")
		}
		expectReply("without a flow", vip)
	}
	drain()
	expectRequest("while pod1 drains", "pod2")
	expectReply("beside another flow", vip)
	l.age(p, shortestTimeout+1)
	p.walk()
	expectReply("after a rest", pod)
	expectRequest("after a rest", "pod2")

	client = netip.AddrPortFrom(client.Addr(), 6)
	l.set(p, state("pod3"))
	l.await("flows to end", func() bool { return len(l.flows(p)) == 0 })
	drain()
	l.set(p, state("pod2"))
	l.await("the State to be checked", func() bool { return !p.Status().Busy })
	expectReply("forbidden", pod)
}

// A SYN begins another connection only if the backend has closed the previous one.
func TestSYNOfKnownFlow(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		vip, client := port("vip", 0, 80), port("client", 0, 1)
		for name, tt := range map[string]struct {
			there, back uint8
			isNew       bool
		}{
			"open":                {ack, ack, false},
			"the client's reset":  {rst, ack, false},
			"the client's end":    {fin | ack, ack, false},
			"the backend's reset": {ack, rst, true},
			"both ends":           {fin | ack, fin | ack, true},
		} {
			l.set(p, state("pod1"))
			pod := port("pod1", 0, 8080)
			l.arrive(p, packet{from: client, to: vip, protocol: TCP, flags: syn}.ip())
			l.comeBack(p, "cali1", packet{from: pod, to: client, protocol: TCP, flags: syn | ack}.ip())
			l.arrive(p, packet{from: client, to: vip, protocol: TCP, flags: tt.there}.ip())
			l.comeBack(p, "cali1", packet{from: pod, to: client, protocol: TCP, flags: tt.back}.ip())
			l.set(p, each(state("pod2"), func(f *Frontend) {
				if f.Addr == vip && f.Protocol == TCP {
					f.Draining = []netip.AddrPort{pod}
				}
			}))
			_, out := l.arrive(p, packet{from: client, to: vip, protocol: TCP, flags: syn}.ip())
			if isNew := read(t, out).to != pod; isNew != tt.isNew {
				t.Errorf("%s: a new flow %t; want %t", name, isNew, tt.isNew)
			}
			l.set(p, state("pod3"))
			l.await("flows to end", func() bool { return len(l.flows(p)) == 0 })
		}
	})
}

// age moves the last packet of all flows so many seconds into the past.
func (l *lab) age(p *Datapath, by uint32) {
	l.t.Helper()
	all := make(map[kernelTuple]kernelFlow)
	var key kernelTuple
	var value kernelFlow
	for entries := p.kernel.Flows.Iterate(); entries.Next(&key, &value); {
		all[key] = value
	}
	for key, value := range all {
		value.Seen = seconds() - by
		if err := p.kernel.Flows.Put(key, value); err != nil {
			l.t.Fatal(err)
		}
	}
}

// An entry without its counterpart is deleted.
func TestOrphanedEntry(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		l.arrive(p, packet{from: port("client", 0, 1), to: port("vip", 0, 80), protocol: UDP}.ip())
		var key kernelTuple
		var value kernelFlow
		for entries := p.kernel.Flows.Iterate(); entries.Next(&key, &value); {
			if key.Direction == outward {
				break
			}
		}
		if err := p.kernel.Flows.Delete(key); err != nil {
			t.Fatal(err)
		}
		p.walk()
		l.age(p, 11)
		p.walk()
		if entries := p.kernel.Flows.Iterate(); entries.Next(&key, &value) {
			t.Errorf("%+v remains", key)
		}
	})
}

// Only changed routes whose destination contains a backend cause lookups.
func TestAffectsBackends(t *testing.T) {
	p := Datapath{routes: routes{of: map[netip.Addr]*backendRoute{at("pod1", 0): {}, at("pod1", 1): {}}}}
	for route, want := range map[string]bool{
		"10.244.1.11/32": true, "10.244.0.0/16": true, "0.0.0.0/0": true, "fd00:244:1::11/128": true, "::/0": true,
		"10.244.1.12/32": false, "203.0.113.0/24": false, "fd00:244:2::/64": false,
	} {
		_, to, err := net.ParseCIDR(route)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.affectsBackends(to); got != want {
			t.Errorf("%s: %t", route, got)
		}
	}
	if !p.affectsBackends(nil) {
		t.Error("the default route")
	}
}

// The slots give each backend the share of its weight.
func TestSlots(t *testing.T) {
	for _, weights := range [][]uint16{{1}, {1, 1, 1}, {1, 2, 5}, {65535, 1}, {0, 3}, {7, 7, 1, 1, 1, 200}} {
		var backends []Backend
		var total float64
		for i, w := range weights {
			backends = append(backends, Backend{port("pod1", 0, uint16(i)), w})
			total += float64(max(w, 1))
		}
		got := make([]float64, len(weights))
		for _, s := range slotsOf(backends) {
			keep := (float64(s.Keep) + 1) / (1 << 32) / float64(len(weights))
			got[s.Backend.Port] += keep
			got[s.Other.Port] += 1/float64(len(weights)) - keep
		}
		for i, w := range weights {
			if want := float64(max(w, 1)) / total; got[i] < want-1e-6 || got[i] > want+1e-6 {
				t.Errorf("weights %v: number %d gets %f; want %f", weights, i, got[i], want)
			}
		}
	}
}
