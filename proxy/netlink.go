package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

// socketBuffer is the size asked for both buffers. A transaction is one
// message to the kernel and must fit into the send buffer: 100,000 elements
// take about 10 MB. Without CAP_NET_ADMIN in the first user namespace the
// kernel grants no more than net.core.wmem_max.
const socketBuffer = 64 << 20

// errInterrupted says that what was dumped changed meanwhile, so that the
// answer may lack entries or hold some twice.
var errInterrupted = fmt.Errorf("dump: %w", unix.EINTR)

// A socket is a netlink socket of the netfilter family. Requests are answered
// before the send call returns, so that there is nothing to wait for: after a
// request, all of its answers are in the receive buffer. That makes it simple
// to read all of them, and so never to take a late answer for that of the next
// request. A socket serves one goroutine at a time.
type socket struct {
	fd   int
	port uint32 // how the kernel names this socket, in its notifications too
	seq  uint32
	buf  []byte
}

func dial() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	s := &socket{fd: fd, buf: make([]byte, 64<<10)}
	if err := s.setup(); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return s, nil
}

func (s *socket) setup() error {
	for force, plain := range map[int]int{
		unix.SO_SNDBUFFORCE: unix.SO_SNDBUF,
		unix.SO_RCVBUFFORCE: unix.SO_RCVBUF,
	} {
		if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, force, socketBuffer) == nil {
			continue
		}
		// EPERM in a user namespace: take what the system allows.
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, plain, socketBuffer); err != nil {
			return err
		}
	}
	// Ask for errors with the kernel's words and without the request, which
	// can be megabytes. Old kernels know neither option.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	self, err := unix.Getsockname(s.fd)
	if err != nil {
		return err
	}
	s.port = self.(*unix.SockaddrNetlink).Pid
	return nil
}

func (s *socket) close() error { return unix.Close(s.fd) }

// send hands one datagram of messages to the kernel.
func (s *socket) send(b []byte) error {
	s.discard()
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EMSGSIZE):
			return fmt.Errorf("a transaction of %d bytes exceeds the socket's send buffer; CAP_NET_ADMIN in the first user namespace, or a higher net.core.wmem_max, permits more: %w", len(b), err)
		}
		return err
	}
}

// discard empties the receive buffer of what an abandoned request left.
func (s *socket) discard() {
	for {
		if _, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// A reply is one message from the kernel. Its data is valid only until the
// next one is read.
type reply struct {
	kind  uint16
	flags uint16
	seq   uint32
	data  []byte
}

// replies yields the messages that wait in the receive buffer, or, with
// block, waits for them.
func (s *socket) replies(block bool) iter.Seq2[reply, error] {
	flags := 0
	if !block {
		flags = unix.MSG_DONTWAIT
	}
	return func(yield func(reply, error) bool) {
		for {
			n, _, err := unix.Recvfrom(s.fd, s.buf, flags)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				if !block && errors.Is(err, unix.EAGAIN) {
					return
				}
				yield(reply{}, err)
				return
			}
			for r := range messages(s.buf[:n]) {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

// messages splits a datagram.
func messages(b []byte) iter.Seq[reply] {
	return func(yield func(reply) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			length := int(binary.NativeEndian.Uint32(b))
			if length < unix.SizeofNlMsghdr || length > len(b) {
				return
			}
			r := reply{
				kind:  binary.NativeEndian.Uint16(b[4:]),
				flags: binary.NativeEndian.Uint16(b[6:]),
				seq:   binary.NativeEndian.Uint32(b[8:]),
				data:  b[unix.SizeofNlMsghdr:length],
			}
			if !yield(r) {
				return
			}
			b = b[min(align(length), len(b)):]
		}
	}
}

// dump sends a request for a list and calls each with every answer, without
// its nfgenmsg. After an error what each was given must be thrown away.
func (s *socket) dump(subsystem, kind, family uint8, request []byte, each func(data []byte)) error {
	return s.dumpFamilies(subsystem, kind, family, request, func(_ uint8, data []byte) { each(data) })
}

// dumpFamilies is dump for a list of more than one family, which each receives.
func (s *socket) dumpFamilies(subsystem, kind, family uint8, request []byte, each func(family uint8, data []byte)) error {
	s.seq++
	var e encoder
	e.message(subsystem, kind, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, s.seq, family, func() { e.raw(request) })
	if err := s.send(e.b); err != nil {
		return err
	}
	interrupted := false
	for r, err := range s.replies(true) {
		if err != nil {
			return err
		}
		interrupted = interrupted || r.flags&unix.NLM_F_DUMP_INTR != 0
		switch r.kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if err := r.errno(); err != nil {
				return err
			}
			if interrupted {
				return errInterrupted
			}
			return nil
		}
		if len(r.data) >= sizeofNfGenMsg && r.seq == s.seq {
			each(r.data[0], r.data[sizeofNfGenMsg:])
		}
	}
	return nil
}

// errno is the error that an acknowledgement or the end of a dump carries,
// with the kernel's own words where it has some.
func (r reply) errno() error {
	if len(r.data) < 4 {
		return nil
	}
	n := int32(binary.NativeEndian.Uint32(r.data))
	if n == 0 {
		return nil
	}
	err := error(unix.Errno(-n))
	if r.kind != unix.NLMSG_ERROR || r.flags&unix.NLM_F_ACK_TLVS == 0 || len(r.data) < 4+unix.SizeofNlMsghdr {
		return err
	}
	// With NETLINK_CAP_ACK only the request's header stands before these.
	for t, v := range attributes(r.data[4+unix.SizeofNlMsghdr:]) {
		if t == unix.NLMSGERR_ATTR_MSG {
			return fmt.Errorf("%s: %w", cstring(v), err)
		}
	}
	return err
}

const sizeofNfGenMsg = 4

// align rounds up to the 4 bytes that netlink pads everything to.
func align(n int) int { return (n + 3) &^ 3 }

// An encoder appends netlink messages to b.
type encoder struct{ b []byte }

// message appends one message of a netfilter subsystem whose attributes body
// appends.
func (e *encoder) message(subsystem, kind uint8, flags uint16, seq uint32, family uint8, body func()) {
	start := len(e.b)
	e.header(uint16(subsystem)<<8|uint16(kind), flags, seq, family, 0)
	body()
	binary.NativeEndian.PutUint32(e.b[start:], uint32(len(e.b)-start))
}

// header appends nlmsghdr and nfgenmsg.
func (e *encoder) header(kind, flags uint16, seq uint32, family uint8, resource uint16) {
	e.b = binary.NativeEndian.AppendUint32(e.b, unix.SizeofNlMsghdr+sizeofNfGenMsg)
	e.b = binary.NativeEndian.AppendUint16(e.b, kind)
	e.b = binary.NativeEndian.AppendUint16(e.b, flags)
	e.b = binary.NativeEndian.AppendUint32(e.b, seq)
	e.b = binary.NativeEndian.AppendUint32(e.b, 0)
	e.b = append(e.b, family, unix.NFNETLINK_V0)
	e.b = binary.BigEndian.AppendUint16(e.b, resource)
}

func (e *encoder) raw(b []byte) { e.b = append(e.b, b...) }

// bytes appends an attribute.
func (e *encoder) bytes(t uint16, data []byte) { appendAttribute(e, t, data) }

// string appends an attribute that C reads as a string.
func (e *encoder) string(t uint16, s string) { appendAttribute(e, t, s, 0) }

// opaque appends an attribute whose bytes are kept in a string.
func (e *encoder) opaque(t uint16, s string) { appendAttribute(e, t, s) }

func (e *encoder) uint32(t uint16, n uint32) {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	appendAttribute(e, t, b[:])
}

func appendAttribute[T string | []byte](e *encoder, t uint16, data T, end ...byte) {
	length := unix.SizeofNlAttr + len(data) + len(end)
	e.b = binary.NativeEndian.AppendUint16(e.b, uint16(length))
	e.b = binary.NativeEndian.AppendUint16(e.b, t)
	e.b = append(e.b, data...)
	e.b = append(e.b, end...)
	for range align(length) - length {
		e.b = append(e.b, 0)
	}
}

// open begins a nested attribute; shut ends it.
func (e *encoder) open(t uint16) (start int) {
	start = len(e.b)
	e.b = binary.NativeEndian.AppendUint16(e.b, 0)
	e.b = binary.NativeEndian.AppendUint16(e.b, t|unix.NLA_F_NESTED)
	return start
}

func (e *encoder) shut(start int) {
	binary.NativeEndian.PutUint16(e.b[start:], uint16(len(e.b)-start))
}

// nlaTypeMask takes the flags off an attribute's type.
const nlaTypeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// attributes yields the attributes in b up to the first that is malformed.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			length := int(binary.NativeEndian.Uint16(b))
			if length < unix.SizeofNlAttr || length > len(b) {
				return
			}
			t := binary.NativeEndian.Uint16(b[2:]) & nlaTypeMask
			if !yield(t, b[unix.SizeofNlAttr:length:length]) {
				return
			}
			b = b[min(align(length), len(b)):]
		}
	}
}

// attribute returns the first attribute of type t, following a path of nested
// ones; nil when there is none.
func attribute(b []byte, path ...uint16) []byte {
	for _, want := range path {
		var found []byte
		for t, v := range attributes(b) {
			if t == want {
				found = v
				break
			}
		}
		if found == nil {
			return nil
		}
		b = found
	}
	return b
}

// cstring is the text up to the terminating zero.
func cstring(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
