package observer

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	cbpf "golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// frame returns a frame from a client's port to a port of an address.
func frame(mac string, vip netip.Addr, protocol byte, client, server uint16) []byte {
	to, _ := net.ParseMAC(mac)
	f := append(slices.Clone(to), 2, 0, 0, 0, 0, 9)
	var packet []byte
	if vip.Is4() {
		f = binary.BigEndian.AppendUint16(f, unix.ETH_P_IP)
		packet = make([]byte, 20, 64)
		packet[0], packet[9] = 0x45, protocol
		copy(packet[16:], vip.AsSlice())
	} else {
		f = binary.BigEndian.AppendUint16(f, unix.ETH_P_IPV6)
		packet = make([]byte, 40, 64)
		packet[0], packet[6] = 0x60, protocol
		copy(packet[24:], vip.AsSlice())
	}
	packet = binary.BigEndian.AppendUint16(packet, client)
	packet = binary.BigEndian.AppendUint16(packet, server)
	return append(f, append(packet, 0, 0, 0, 0)...)
}

// Of each flow the nodes are known that got its packets, for both families and protocols.
func TestPathsOfFlows(t *testing.T) {
	const mac1, mac2 = "02:00:00:00:00:01", "02:00:00:00:00:02"
	for _, vip := range []netip.Addr{four, six} {
		p := &Paths{node: map[string]string{mac1: "n1", mac2: "n2"}, by: map[pathKey][]string{}}
		p.record(frame(mac1, vip, unix.IPPROTO_TCP, 4096, 80))
		p.record(frame(mac1, vip, unix.IPPROTO_TCP, 4096, 80))
		p.record(frame(mac1, vip, unix.IPPROTO_UDP, 4097, 7))
		p.record(frame(mac2, vip, unix.IPPROTO_TCP, 4096, 80))
		p.record(frame("02:00:00:00:00:03", vip, unix.IPPROTO_TCP, 4098, 80)) // no node
		p.record(frame(mac1, vip, unix.IPPROTO_ICMP, 4099, 80))
		redirected := frame(mac1, vip, unix.IPPROTO_TCP, 4096, 80)
		redirected[11] = 2 // from n2
		p.record(redirected)
		p.record([]byte{1, 2, 3})
		for _, c := range []struct {
			network        string
			client, server uint16
			want           []string
		}{
			{"tcp", 4096, 80, []string{"n1", "n2"}},
			{"udp", 4097, 7, []string{"n1"}},
			{"tcp", 4097, 7, nil},
			{"tcp", 4098, 80, nil},
			{"tcp", 4099, 80, nil},
		} {
			if got := p.Of(c.network, c.client, c.server); !slices.Equal(got, c.want) {
				t.Errorf("%s: %s from %d to %d went to %v: want %v", vip, c.network, c.client, c.server, got, c.want)
			}
		}
		if got := p.Order(); !slices.Equal(got, []string{"n1", "n2"}) {
			t.Errorf("%s: in the order %v", vip, got)
		}
	}
}

// The filter passes frames to the address alone.
func TestDestinationFilter(t *testing.T) {
	for _, vip := range []netip.Addr{four, six} {
		vm, err := cbpf.NewVM(destinationProgram(vip))
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []netip.Addr{four, six, four.Next(), six.Next()} {
			n, err := vm.Run(frame("02:00:00:00:00:01", to, unix.IPPROTO_TCP, 1, 2))
			if err != nil || n > 0 != (to == vip) {
				t.Errorf("the filter for %s passes %d bytes of a frame to %s (%v)", vip, n, to, err)
			}
		}
	}
}

// Routes to a prefix count for the covered addresses in it, while they are covered: another
// test may announce the prefix again, when the address has no Service.
func TestCoveredAddresses(t *testing.T) {
	o := &Observer{}
	before := time.Now()
	end := o.Cover(four)
	o.Cover(six)
	prefix := netip.MustParsePrefix("192.0.2.0/24")
	if got := o.addresses(before, netip.Addr{}, prefix); !slices.Equal(got, []netip.Addr{four}) {
		t.Errorf("%s covers %v", prefix, got)
	}
	other := four.Next()
	if got := o.addresses(before, other, netip.PrefixFrom(other, 32)); !slices.Equal(got, []netip.Addr{other}) {
		t.Errorf("a route to %s counts for %v", other, got)
	}
	if got := o.addresses(before, netip.Addr{}, netip.MustParsePrefix("198.51.100.0/24")); got != nil {
		t.Errorf("another prefix covers %v", got)
	}
	end()
	if got := o.addresses(before, netip.Addr{}, prefix); !slices.Equal(got, []netip.Addr{four}) {
		t.Errorf("%s covered %v, by an event that is recorded late", prefix, got)
	}
	if got := o.addresses(time.Now(), netip.Addr{}, prefix); got != nil {
		t.Errorf("%s covers %v after the end", prefix, got)
	}
}
