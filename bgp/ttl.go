package bgp

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const maxTTL = 255

// ttl returns the TTL of sent packets; 0 is the kernel's default. A neighbour in another AS is
// directly connected unless the session says otherwise: packets that need another hop then expire,
// rather than reach another host with the same address.
func ttl(s Session) int {
	switch {
	case s.TTLSecurityHops != 0:
		return maxTTL // RFC 5082 §3: the TTL on arrival gives the distance
	case s.PeerASN == s.LocalASN:
		return 0
	case s.EBGPMultihopTTL != 0:
		return int(s.EBGPMultihopTTL)
	default:
		return 1
	}
}

// leastTTL is the TTL on arrival of a packet from TTLSecurityHops away.
func (s Session) leastTTL() int { return maxTTL + 1 - int(s.TTLSecurityHops) }

// setHops sets how far packets of this node go, and from how far the router's may come: the kernel
// drops others, even the answer to this node's SYN.
func setHops(fd int, s Session) error {
	is4 := s.PeerAddress.Is4()
	if n := ttl(s); n != 0 {
		if err := setTTL(fd, is4, n); err != nil {
			return err
		}
	}
	if s.TTLSecurityHops == 0 {
		return nil
	}
	level, least, n := unix.IPPROTO_IPV6, unix.IPV6_MINHOPCOUNT, s.leastTTL()
	if is4 {
		level, least = unix.IPPROTO_IP, unix.IP_MINTTL
	}
	if err := unix.SetsockoptInt(fd, level, least, n); err != nil {
		return fmt.Errorf("least TTL %d: %w", n, err)
	}
	return nil
}

// setTTL sets the TTL, or hop limit, of a socket's packets.
func setTTL(fd int, is4 bool, n int) error {
	level, option := unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	if is4 {
		level, option = unix.IPPROTO_IP, unix.IP_TTL
	}
	if err := unix.SetsockoptInt(fd, level, option, n); err != nil {
		return fmt.Errorf("TTL %d: %w", n, err)
	}
	return nil
}
