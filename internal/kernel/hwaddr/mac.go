package hwaddr

import (
	"fmt"
	"net"
)

// A MAC is an Ethernet hardware address of 48 bits. Unlike net.HardwareAddr it is comparable.
type MAC [6]byte

// Parse parses the notations of net.ParseMAC, with 48 bits.
func Parse(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return MAC{}, err
	}
	m, ok := Of(hw)
	if !ok {
		return MAC{}, fmt.Errorf("hardware address %s has %d bytes, not 6", s, len(hw))
	}
	return m, nil
}

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

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(text []byte) (err error) {
	*m, err = Parse(string(text))
	return err
}

// Unicast reports whether the address can belong to an interface: it is neither a group,
// such as broadcast, nor zero.
func (m MAC) Unicast() bool { return m != MAC{} && m[0]&1 == 0 }
