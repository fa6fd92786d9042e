package hwaddr

import "net"

// A MAC is an Ethernet hardware address of 48 bits. Unlike net.HardwareAddr it is comparable.
type MAC [6]byte

// Of converts a net.HardwareAddr; false if it is not Ethernet's.
func Of(hw net.HardwareAddr) (MAC, bool) {
	if len(hw) != len(MAC{}) {
		return MAC{}, false
	}
	return MAC(hw), true
}

// String is the notation of ip and arping.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText implements encoding.TextMarshaler.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// Unicast reports whether the address can belong to an interface: it is neither a group,
// such as broadcast, nor zero.
func (m MAC) Unicast() bool { return m != MAC{} && m[0]&1 == 0 }
