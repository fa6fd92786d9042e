package bgp

import (
	"fmt"
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

// setPassword makes the kernel sign segments to the router of a session with a password, and drop
// segments from it without a valid signature. An empty password undoes that, for a socket that listens
// for several routers.
func setPassword(fd int, s Session, password Password) error {
	if s.Password == "" {
		return nil
	}
	peer := s.PeerAddress
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
	if err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &sig); err != nil {
		return fmt.Errorf("password (TCP MD5): %w", err)
	}
	return nil
}
