package membership

import (
	"errors"
	"net/netip"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership/gossip"
)

// The first byte of a node's metadata. A release that does not know it takes the node for one
// without interfaces, which answers for nothing.
const (
	metaVersion   = 1
	metaReturning = 2 // the node has returned only recently; other nodes are preferred
)

// NodeMeta is the metadata that other nodes receive: by which interfaces this node can answer
// for addresses. It is immutable: equal pointers mean that nothing has changed.
type NodeMeta struct {
	Encoded []byte // by EncodeInterfaces
	Omitted int    // the number of relevant interfaces without room in it
}

// EncodeInterfaces encodes a node's interfaces. It returns the names of interfaces without
// room in the metadata.
func EncodeInterfaces(list []cluster.Interface) (b []byte, omitted []string) {
	b = []byte{metaVersion}
	for _, i := range list {
		one := encodeInterface(i)
		if len(b)+len(one) > gossip.MaxMeta {
			omitted = append(omitted, i.Name)
			continue
		}
		b = append(b, one...)
	}
	return b, omitted
}

// returningMeta marks the metadata of a node in its hold-down.
func returningMeta(b []byte) []byte {
	return append([]byte{metaReturning}, b[1:]...)
}

// isReturning reports whether metadata has that mark.
func isReturning(b []byte) bool { return len(b) > 0 && b[0] == metaReturning }

// encodeInterface encodes one interface, with only the significant bytes of each prefix. Names
// of interfaces have 15 bytes at most, and 255 prefixes exceed the metadata anyway.
func encodeInterface(i cluster.Interface) []byte {
	b := append([]byte{byte(len(i.Name))}, i.Name...)
	b = append(b, i.MAC[:]...)
	b = append(b, byte(min(len(i.Prefixes), 255)))
	for _, p := range i.Prefixes[:min(len(i.Prefixes), 255)] {
		addr := p.Addr().AsSlice()
		b = append(b, byte(len(addr)), byte(p.Bits()))
		b = append(b, addr[:(p.Bits()+7)/8]...)
	}
	return b
}

var errMeta = errors.New("is not the metadata of a speaker of this release")

// DecodeInterfaces decodes metadata. Empty metadata has no interfaces.
func DecodeInterfaces(b []byte) (list []cluster.Interface, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	if b[0] != metaVersion && b[0] != metaReturning {
		return nil, errMeta
	}
	for b = b[1:]; len(b) > 0; {
		var i cluster.Interface
		if i, b, err = decodeInterface(b); err != nil {
			return nil, err
		}
		list = append(list, i)
	}
	return list, nil
}

// decodeInterface decodes one interface and returns the rest.
func decodeInterface(b []byte) (i cluster.Interface, rest []byte, err error) {
	take := func(n int) (part []byte) {
		if n > len(b) {
			err = errMeta
			return make([]byte, n)
		}
		part, b = b[:n], b[n:]
		return part
	}
	i.Name = string(take(int(take(1)[0])))
	copy(i.MAC[:], take(len(i.MAC)))
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
