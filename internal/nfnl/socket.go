package nfnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

// BufferSize is the size asked for both buffers. A transaction is one
// message to the kernel and must fit into the send buffer: 100,000 elements
// take about 10 MB. Without CAP_NET_ADMIN in the first user namespace the
// kernel grants no more than net.core.wmem_max.
const BufferSize = 64 << 20

// ErrInterrupted says that what was dumped changed meanwhile, so that the
// answer may lack entries or hold some twice.
var ErrInterrupted = fmt.Errorf("dump: %w", unix.EINTR)

// A Socket is a netlink socket of the netfilter family. Requests are answered
// before the send call returns, so that there is nothing to wait for: after a
// request, all of its answers are in the receive buffer. That makes it simple
// to read all of them, and so never to take a late answer for that of the next
// request. A socket serves one goroutine at a time.
type Socket struct {
	fd   int
	Port uint32 // how the kernel names this socket, in its notifications too
	Seq  uint32 // of the last request
	buf  []byte
}

// Dial opens a socket in the network namespace of the calling thread.
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

func (s *Socket) setup() error {
	for force, plain := range map[int]int{
		unix.SO_SNDBUFFORCE: unix.SO_SNDBUF,
		unix.SO_RCVBUFFORCE: unix.SO_RCVBUF,
	} {
		if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, force, BufferSize) == nil {
			continue
		}
		// EPERM in a user namespace: take what the system allows.
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, plain, BufferSize); err != nil {
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
	s.Port = self.(*unix.SockaddrNetlink).Pid
	return nil
}

// FD is the file descriptor.
func (s *Socket) FD() int { return s.fd }

// Close closes the socket.
func (s *Socket) Close() error { return unix.Close(s.fd) }

// Send hands one datagram of messages to the kernel.
func (s *Socket) Send(b []byte) error {
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
func (s *Socket) discard() {
	for {
		if _, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// A Reply is one message from the kernel. Its data is valid only until the
// next one is read.
type Reply struct {
	Kind  uint16
	Flags uint16
	Seq   uint32
	Data  []byte
}

// Replies yields the messages that wait in the receive buffer, or, with
// block, waits for them.
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

// messages splits a datagram.
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

// Dump sends a request for a list and calls each with every answer, without
// its nfgenmsg. After an error what each was given must be thrown away.
func (s *Socket) Dump(subsystem, kind, family uint8, request []byte, each func(data []byte)) error {
	return s.DumpFamilies(subsystem, kind, family, request, func(_ uint8, data []byte) { each(data) })
}

// DumpFamilies is Dump for a list of more than one family, which each receives.
func (s *Socket) DumpFamilies(subsystem, kind, family uint8, request []byte, each func(family uint8, data []byte)) error {
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

// Errno is the error that an acknowledgement or the end of a dump carries,
// with the kernel's own words where it has some.
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
	// With NETLINK_CAP_ACK only the request's header stands before these.
	for t, v := range Attributes(r.Data[4+unix.SizeofNlMsghdr:]) {
		if t == unix.NLMSGERR_ATTR_MSG {
			return fmt.Errorf("%s: %w", CString(v), err)
		}
	}
	return err
}
