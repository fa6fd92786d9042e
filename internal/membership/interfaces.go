package membership

import (
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/membership/gossip"
)

// metaVersion begins what a speaker tells the others of its node, metaReturning in its place
// what one tells whose node is back so lately that others come before it. To a release that
// knows of no such thing that node has no interface, and answers for nothing.
const (
	metaVersion   = 1
	metaReturning = 2
)

// An Offer is what the other speakers are told of the interfaces by which this node can
// answer for addresses. It is told again when it is another one.
type Offer struct {
	Meta  []byte // of encodeInterfaces
	Unfit int    // how many more interfaces matter, and have no room in it
}

// macLength is that of Ethernet: no other link has ARP or NDP for us.
const macLength = 6

// EncodeInterfaces is what a speaker tells the others of its node's interfaces, and the
// names of those that it leaves out since there is no room.
func EncodeInterfaces(list []Interface) (b []byte, left []string) {
	b = []byte{metaVersion}
	for _, i := range list {
		one := encodeInterface(i)
		if len(b)+len(one) > gossip.MaxMeta {
			left = append(left, i.Name)
			continue
		}
		b = append(b, one...)
	}
	return b, left
}

// returningMeta is what encodeInterfaces wrote, of a node that is back only now.
func returningMeta(b []byte) []byte {
	return append([]byte{metaReturning}, b[1:]...)
}

// isReturning reads that.
func isReturning(b []byte) bool { return len(b) > 0 && b[0] == metaReturning }

// encodeInterface has of each prefix only the bytes that count. Names of interfaces are
// of 15 bytes at most, and 255 subnets are more than fit.
func encodeInterface(i Interface) []byte {
	mac := make([]byte, macLength)
	copy(mac, i.MAC)
	b := append([]byte{byte(len(i.Name))}, i.Name...)
	b = append(b, mac...)
	b = append(b, byte(min(len(i.Prefixes), 255)))
	for _, p := range i.Prefixes[:min(len(i.Prefixes), 255)] {
		addr := p.Addr().AsSlice()
		b = append(b, byte(len(addr)), byte(p.Bits()))
		b = append(b, addr[:(p.Bits()+7)/8]...)
	}
	return b
}

var errMeta = errors.New("is not what speakers of this release tell of their interfaces")

// DecodeInterfaces reads what encodeInterfaces wrote. Of a speaker that has said nothing
// there are none.
func DecodeInterfaces(b []byte) (list []Interface, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	if b[0] != metaVersion && b[0] != metaReturning {
		return nil, errMeta
	}
	for b = b[1:]; len(b) > 0; {
		var i Interface
		if i, b, err = decodeInterface(b); err != nil {
			return nil, err
		}
		list = append(list, i)
	}
	return list, nil
}

// decodeInterface reads one, and returns what follows.
func decodeInterface(b []byte) (i Interface, rest []byte, err error) {
	take := func(n int) (part []byte) {
		if n > len(b) {
			err = errMeta
			return make([]byte, n)
		}
		part, b = b[:n], b[n:]
		return part
	}
	i.Name = string(take(int(take(1)[0])))
	if mac := net.HardwareAddr(slices.Clone(take(macLength))); !slices.Equal(mac, make([]byte, macLength)) {
		i.MAC = mac
	}
	for n := take(1)[0]; n > 0 && err == nil; n-- {
		family, bits := int(take(1)[0]), int(take(1)[0])
		if family != 4 && family != 16 || bits > family*8 {
			return i, nil, errMeta
		}
		addr := make([]byte, family)
		copy(addr, take((bits+7)/8))
		a, _ := netip.AddrFromSlice(addr)
		i.Prefixes = append(i.Prefixes, netip.PrefixFrom(a, bits).Masked())
	}
	return i, b, err
}
