package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// affinitySize is how many clients the kernel remembers for all frontends.
const affinitySize = state.MaxClients

// fillAffinity lets a frontend remember n clients, a third of which come from 172.16.0.0/12 and were
// there long ago.
func fillAffinity(t *testing.T, to netip.AddrPort, n int) {
	t.Helper()
	var all []string
	for i := range n {
		a, expires := netip.AddrFrom4([4]byte{11 + byte(i>>24), byte(i >> 16), byte(i >> 8), byte(i)}), "59m"
		if i < n/3 {
			a, expires = netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)}), "20m"
		}
		all = append(all, fmt.Sprintf("%s . %s . udp . %d timeout 1h expires %s : 1:1", a, to.Addr(), to.Port(),
			expires))
	}
	proxytest.AddElements(t, state.AffinityMap(0), all)
}

// A flood of clients of one Service fills the map, and forgets the oldest clients of that Service.
// Clients of other Services come back to their backends all the while.
func TestAffinityFull(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		pods := podBackends("pod1", "pod2")
		s := affinityState(pods, pods)
		mustSet(t, p, s)
		flooded, other := netip.AddrPortFrom(proxytest.At("vip", 0), 80), netip.AddrPortFrom(proxytest.At("vip", 0), 81)
		first := l.who(l.Client, "udp", 0, other)
		fillAffinity(t, flooded, affinitySize-10)

		var flood []string
		for i := range 200 {
			flood = append(flood, fmt.Sprintf("10.98.0.%d/32", i+1))
		}
		l.Client.Addr("lo", flood...)
		l.Router.Route("10.98.0.0/24", "10.0.1.2", "")
		for i, a := range flood {
			if got := l.askFrom(a, flooded); got != "pod1" && got != "pod2" {
				t.Errorf("client %d of the flood: %s", i, got)
			}
			if got := l.who(l.Client, "udp", 0, other); got != first {
				t.Fatalf("after %d clients of another Service: %s, then %s", i, first, got)
			}
		}
		// What is tested is that it happens, not how soon: 65,536 elements take 20 s on a shared processor.
		var full []AffinityFull
		evicted := func() bool { return len(full) > 0 && full[0].Evicted > 0 }
		for end := time.Now().Add(2 * time.Minute); !evicted(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("nothing is evicted: %+v", full)
			}
			full = p.Status().AffinityFull
		}
		if len(full) != 1 || full[0].Frontend != "192.0.2.1 udp/80" || full[0].Evicted > affinitySize/evictShare+1 {
			t.Errorf("full: %+v", full)
		}
		old, young := 0, 0
		for _, e := range proxytest.Affinity(t) {
			switch {
			case strings.Contains(e, ": ac1"):
				old++
			case strings.Contains(e, ": 0b"):
				young++
			}
		}
		if want := (affinitySize-10)/3 - int(full[0].Evicted); old != want ||
			young != affinitySize-10-(affinitySize-10)/3 {
			t.Errorf("%d old and %d young clients are left of %d, and %d evicted; want %d old ones and all others", old,
				young, affinitySize, full[0].Evicted, want)
		}

		// There is room again: clients come back.
		got := l.askFrom(flood[199], flooded)
		for range 5 {
			if again := l.askFrom(flood[199], flooded); again != got {
				t.Errorf("%s, then %s", got, again)
			}
		}
		// What was evicted is no news to the proxy.
		mustSet(t, p, s)
		if st := p.Status(); st.Repairs != 0 || !p.Intact().Intact {
			t.Errorf("%d repairs, %q; intact %+v", st.Repairs, st.Found, p.Intact())
		}
	})
}

// In iptables mode a frontend is full if the set of one of its backends is, for clients of either
// kind.
func TestAffinityFullSets(t *testing.T) {
	backends := func(addr string) Target { return Target{Backends: []Backend{{Addr: netip.MustParseAddrPort(addr)}}} }
	frontend := func(port uint16, affinity time.Duration) Frontend {
		return Frontend{
			Protocol: TCP, Port: port, Name: "shop/web", Affinity: affinity, External: backends("10.244.1.11:8080"),
			Internal: backends("10.244.1.12:8080"),
		}
	}
	v := &VIP{
		Addr:      netip.MustParseAddr("192.0.2.1"),
		Frontends: []Frontend{frontend(80, time.Hour), frontend(81, time.Hour), frontend(82, 0)},
	}
	for _, c := range []struct {
		name   string
		full   func(f *Frontend) Backend
		of     int
		listed string
	}{
		{"external", func(f *Frontend) Backend { return f.External.Backends[0] }, 0, "192.0.2.1 tcp/80 shop/web"},
		{"internal", func(f *Frontend) Backend { return f.Internal.Backends[0] }, 1, "192.0.2.1 tcp/81 shop/web"},
		{"without affinity", func(f *Frontend) Backend { return f.External.Backends[0] }, 2, ""},
	} {
		f := &v.Frontends[c.of]
		listed := ""
		for _, full := range affinityFull(State{VIPs: proxytest.VIPsOf(v)}, nil,
			[]string{iptables.AffinityName(v, f, c.full(f))}) {
			listed += full.Frontend
			if full.Evicted != 0 || time.Since(full.Last) > time.Minute {
				t.Errorf("%s: %+v", c.name, full)
			}
		}
		if listed != c.listed {
			t.Errorf("%s: %q, want %q", c.name, listed, c.listed)
		}
	}
}

// evictShare is that of package nftables.
const evictShare = 4

// askFrom asks by UDP from an address of the client, and says which pod answers.
func (l *lab) askFrom(prefix string, to netip.AddrPort) string {
	l.T.Helper()
	from := netip.MustParsePrefix(prefix).Addr()
	var c net.Conn
	var err error
	l.Client.Do(func() {
		d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		c, err = d.Dial("udp", to.String())
	})
	if err != nil {
		l.T.Fatal(err)
	}
	defer c.Close()
	pod, _, _ := strings.Cut(l.Ask(c), " saw ")
	return pod
}
