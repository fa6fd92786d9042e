package bgp

import (
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Password is the key by which both ends sign their segments (RFC 2385). No log, status or file
// contains it.
type Password string

const hidden = "(hidden)"

func (Password) String() string { return hidden }

// GoString is for %#v.
func (Password) GoString() string { return hidden }

// MarshalText is for JSON and logs.
func (Password) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// UnmarshalText makes it empty: a Session that is read from a file has no password.
func (p *Password) UnmarshalText([]byte) error {
	*p = ""
	return nil
}

// setPassword makes the kernel sign segments to the router, and drop segments from it without a
// valid signature.
func setPassword(fd int, s Session) error {
	if s.Password == "" {
		return nil
	}
	if err := setSignature(fd, s.PeerAddress, s.Password); err != nil {
		return fmt.Errorf("password (TCP MD5): %w", err)
	}
	return nil
}

// removePassword undoes setPassword on a socket that listens for several routers.
func removePassword(fd int, s Session) error {
	if s.Password == "" {
		return nil
	}
	if err := setSignature(fd, s.PeerAddress, ""); err != nil {
		return fmt.Errorf("removing a password (TCP MD5): %w", err)
	}
	return nil
}

func setSignature(fd int, peer netip.Addr, password Password) error {
	var sig unix.TCPMD5Sig
	sig.Keylen = uint16(copy(sig.Key[:], password))
	if peer.Is4() {
		a := peer.As4()
		sig.Addr.Family = unix.AF_INET
		copy((*unix.RawSockaddrInet4)(unsafe.Pointer(&sig.Addr)).Addr[:], a[:])
	} else {
		a := peer.As16()
		sig.Addr.Family = unix.AF_INET6
		copy((*unix.RawSockaddrInet6)(unsafe.Pointer(&sig.Addr)).Addr[:], a[:])
	}
	return unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &sig)
}
