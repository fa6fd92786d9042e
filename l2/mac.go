package l2

import (
	"fmt"
	"net"
)

// A MAC is a hardware address of Ethernet, of 48 bits. Unlike net.HardwareAddr it can
// be compared.
type MAC [6]byte

// ParseMAC reads what net.ParseMAC reads, of 48 bits only.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return MAC{}, err
	}
	m, ok := macOf(hw)
	if !ok {
		return MAC{}, fmt.Errorf("hardware address %s has %d bytes, not 6", s, len(hw))
	}
	return m, nil
}

// macOf takes what libraries have; others than Ethernet's are none.
func macOf(hw net.HardwareAddr) (MAC, bool) {
	if len(hw) != len(MAC{}) {
		return MAC{}, false
	}
	return MAC(hw), true
}

// String is the address as ip and arping write it.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText implements encoding.TextMarshaler.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(text []byte) (err error) {
	*m, err = ParseMAC(string(text))
	return err
}

// unicast says whether the address can be one interface's: the others are groups,
// broadcast among them, and zero, which stands for nobody.
func (m MAC) unicast() bool { return m != MAC{} && m[0]&1 == 0 }
