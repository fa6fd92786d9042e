package nfnl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

// BufferSize is the requested size of both buffers, in bytes. A transaction is one datagram
// and must fit into the send buffer: 100,000 elements take about 10 MB. Without
// CAP_NET_ADMIN in the initial user namespace the kernel grants net.core.wmem_max at most.
const BufferSize = 64 << 20

// ErrInterrupted says that the dumped table changed during the dump (NLM_F_DUMP_INTR), so
// that entries may be missing or duplicate.
var ErrInterrupted = fmt.Errorf("dump: %w", unix.EINTR)

// A Socket is a netlink socket of the netfilter family. The kernel handles a request before
// the send call returns: then all replies are in the receive buffer. Read all of them, so
// that none is taken for a reply to the next request. A Socket is not safe for concurrent
// use.
type Socket struct {
	fd   int
	Port uint32 // the socket's netlink port ID, also in notifications
	Seq  uint32 // sequence number of the last request
	buf  []byte
}

// Dial opens a socket in the network namespace of the calling thread, and keeps it there: the
// Socket may be used by any thread later. Dial needs no capability, but the kernel refuses all
// requests, also dumps, without CAP_NET_ADMIN in the namespace (nfnetlink_rcv).
func Dial() (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	s := &Socket{fd: fd, buf: make([]byte, 64<<10)}
	if err := s.setup(); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return s, nil
}

// setup sets the buffers and options, and lets the kernel choose the port ID.
func (s *Socket) setup() error {
	for force, plain := range map[int]int{
		unix.SO_SNDBUFFORCE: unix.SO_SNDBUF,
		unix.SO_RCVBUFFORCE: unix.SO_RCVBUF,
	} {
		if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, force, BufferSize) == nil {
			continue
		}
		// EPERM in a user namespace: use the system's limit.
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, plain, BufferSize); err != nil {
			return err
		}
	}
	// Request error messages as text, and errors without a copy of the request, which can
	// be megabytes. Old kernels have neither option.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	self, err := unix.Getsockname(s.fd)
	if err != nil {
		return err
	}
	s.Port = self.(*unix.SockaddrNetlink).Pid
	return nil
}

// FD returns the file descriptor, for socket options: package proxy reads the effective size of
// the send buffer. The Socket owns it.
func (s *Socket) FD() int { return s.fd }

// Close closes the socket. It must not be called during another method.
func (s *Socket) Close() error { return unix.Close(s.fd) }

// Send sends one datagram of messages to the kernel, which handles it before Send returns, and
// discards replies to earlier ones. Errors of the messages are in the replies. An error of Send,
// such as EMSGSIZE, means that the kernel has handled none.
func (s *Socket) Send(b []byte) error {
	s.discard()
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EMSGSIZE):
			return fmt.Errorf("a transaction of %d bytes exceeds the socket's send buffer; CAP_NET_ADMIN in the "+
				"first user namespace, or a higher net.core.wmem_max, permits more: %w", len(b), err)
		}
		return err
	}
}

// discard removes the replies of an abandoned request from the receive buffer.
func (s *Socket) discard() {
	for {
		if _, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// A Reply is one message from the kernel. Its data is valid until the next one is read.
type Reply struct {
	Kind  uint16 // NLMSG_*, or the subsystem in the upper byte and its message type
	Flags uint16 // NLM_F_*
	Seq   uint32 // that of the request
	Data  []byte // what follows nlmsghdr
}

// Replies yields the messages in the receive buffer. With block it waits for more, so the caller
// must stop at the last one, such as NLMSG_DONE; otherwise it ends when the buffer is empty. An
// error is the last element: ENOBUFS says that replies were lost because the buffer was full.
func (s *Socket) Replies(block bool) iter.Seq2[Reply, error] {
	flags := 0
	if !block {
		flags = unix.MSG_DONTWAIT
	}
	return func(yield func(Reply, error) bool) {
		for {
			n, _, err := unix.Recvfrom(s.fd, s.buf, flags)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				if !block && errors.Is(err, unix.EAGAIN) {
					return
				}
				yield(Reply{}, err)
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

// messages yields the messages of a datagram, up to the first that is malformed.
func messages(b []byte) iter.Seq[Reply] {
	return func(yield func(Reply) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			length := int(binary.NativeEndian.Uint32(b))
			if length < unix.SizeofNlMsghdr || length > len(b) {
				return
			}
			r := Reply{
				Kind:  binary.NativeEndian.Uint16(b[4:]),
				Flags: binary.NativeEndian.Uint16(b[6:]),
				Seq:   binary.NativeEndian.Uint32(b[8:]),
				Data:  b[unix.SizeofNlMsghdr:length],
			}
			if !yield(r) {
				return
			}
			b = b[min(Align(length), len(b)):]
		}
	}
}

// Dump sends a dump request and calls each with the attributes of every reply, which follow
// nfgenmsg. request are the attributes of the filter, may be nil, and old kernels ignore them.
// data is valid during the call only. After an error, discard what each received. Only after
// ErrInterrupted the entries are real, but some may be missing or duplicate.
func (s *Socket) Dump(subsystem, kind, family uint8, request []byte, each func(data []byte)) error {
	return s.DumpFamilies(subsystem, kind, family, request, func(_ uint8, data []byte) { each(data) })
}

// DumpFamilies is Dump for several address families: each receives that of the reply.
func (s *Socket) DumpFamilies(subsystem, kind, family uint8, request []byte,
	each func(family uint8, data []byte)) error {
	s.Seq++
	var e Encoder
	e.Message(subsystem, kind, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, s.Seq, family, func() { e.Raw(request) })
	if err := s.Send(e.B); err != nil {
		return err
	}
	interrupted := false
	for r, err := range s.Replies(true) {
		if err != nil {
			return err
		}
		interrupted = interrupted || r.Flags&unix.NLM_F_DUMP_INTR != 0
		switch r.Kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if err := r.Errno(); err != nil {
				return err
			}
			if interrupted {
				return ErrInterrupted
			}
			return nil
		}
		if len(r.Data) >= SizeofGenMsg && r.Seq == s.Seq {
			each(r.Data[0], r.Data[SizeofGenMsg:])
		}
	}
	return nil
}

// Get sends a request for one object, and returns a copy of the attributes of the reply, which
// follow nfgenmsg.
func (s *Socket) Get(subsystem, kind, family uint8, request []byte) ([]byte, error) {
	s.Seq++
	var e Encoder
	e.Message(subsystem, kind, unix.NLM_F_REQUEST, s.Seq, family, func() { e.Raw(request) })
	if err := s.Send(e.B); err != nil {
		return nil, err
	}
	for r, err := range s.Replies(false) { // the kernel replies before Send returns
		switch {
		case err != nil:
			return nil, err
		case r.Kind == unix.NLMSG_ERROR:
			return nil, r.Errno()
		case len(r.Data) >= SizeofGenMsg:
			return bytes.Clone(r.Data[SizeofGenMsg:]), nil
		}
	}
	return nil, ErrUnanswered
}

// Errno returns the error of an acknowledgement or of the end of a dump, with the kernel's
// text if there is one; nil for success.
func (r Reply) Errno() error {
	if len(r.Data) < 4 {
		return nil
	}
	n := int32(binary.NativeEndian.Uint32(r.Data))
	if n == 0 {
		return nil
	}
	err := error(unix.Errno(-n))
	if r.Kind != unix.NLMSG_ERROR || r.Flags&unix.NLM_F_ACK_TLVS == 0 || len(r.Data) < 4+unix.SizeofNlMsghdr {
		return err
	}
	// With NETLINK_CAP_ACK only the request's header precedes the attributes.
	for t, v := range Attributes(r.Data[4+unix.SizeofNlMsghdr:]) {
		if t == unix.NLMSGERR_ATTR_MSG {
			return fmt.Errorf("%s: %w", CString(v), err)
		}
	}
	return err
}
