package l2

import (
	"net/netip"
	"testing"
	"time"
)

func TestStateString(t *testing.T) {
	s := State{
		Addresses: []Address{
			{Addr: netip.MustParseAddr("192.0.2.1")},
			{Addr: netip.MustParseAddr("192.0.2.2"), Interfaces: []string{"eth0", "eth1"}, Probe: true},
			{Addr: netip.MustParseAddr("2001:db8::1"), Probe: true, Yield: true},
		},
		Speakers: []MAC{{2, 0, 0, 0, 0, 0x12}},
	}
	const want = `answer 192.0.2.1
answer 192.0.2.2 on eth0 eth1, after a probe
answer 2001:db8::1, after a probe, yields
speaker 02:00:00:00:00:12
`
	if got := s.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestConflictString(t *testing.T) {
	c := Conflict{MAC: MAC{2, 0, 0, 0, 0, 5}, Interface: "eth0", When: time.Unix(0, 0)}
	known := []netip.Addr{netip.MustParseAddr("192.0.2.250"), netip.MustParseAddr("192.0.2.251")}
	for _, tt := range []struct {
		known   []netip.Addr
		gateway bool
		others  int
		want    string
	}{
		{nil, false, 0, "02:00:00:00:00:05 answers for it on eth0: take the address from it, or out of the pool"},
		{known[:1], false, 0, "02:00:00:00:00:05 answers for it on eth0, which is 192.0.2.250: take the address from " +
			"it, or out of the pool"},
		{known, true, 0, "02:00:00:00:00:05 answers for it on eth0, which is 192.0.2.250 and 1 more, a gateway of " +
			"this node: switch off its proxy ARP on this link, or take the address from it"},
		{nil, false, 3, "02:00:00:00:00:05 answers for it on eth0, and for 3 more addresses of the pools: if it is a " +
			"router, switch off its proxy ARP on this link"},
	} {
		c.Known, c.Gateway, c.Others = tt.known, tt.gateway, tt.others
		if got := c.String(); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

func TestInterfaceHas(t *testing.T) {
	i := Interface{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"),
		netip.MustParsePrefix("2001:db8::/64")}}
	for addr, want := range map[string]bool{
		"192.0.2.254": true, "192.0.3.1": false, "2001:db8::ffff": true, "2001:db8:0:1::": false,
	} {
		if got := i.Has(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %t, want %t", addr, got, want)
		}
	}
}
