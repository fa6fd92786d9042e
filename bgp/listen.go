package bgp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// An acceptor accepts the routers' connections for sessions that wait for them. It listens only
// while there is such a session. A socket filter drops SYNs of all other hosts, and of routers
// further away than their session allows: to them the port does not exist.
type acceptor struct {
	mu      sync.Mutex
	waiting map[netip.Addr]*session
	open    map[listenKey]*listener
}

// A listenKey is what sessions must share to use one listener.
type listenKey struct {
	is4    bool
	device string
	// shared: there is another listener on another device. Linux allows that only if both sockets
	// set SO_REUSEPORT, because one of them may have no device.
	shared bool
}

// A listener is a socket with the sessions that it accepts.
type listener struct {
	*net.TCPListener
	sessions []Session
}

func newAcceptor() *acceptor {
	return &acceptor{waiting: map[netip.Addr]*session{}, open: map[listenKey]*listener{}}
}

// join offers connections of s's router to s until leave. It does nothing if s has joined already.
// An error concerns s only; the next call retries.
func (a *acceptor) join(s *session) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting[s.conf.PeerAddress] = s
	for key, err := range a.arrange() {
		if key.is4 == s.conf.PeerAddress.Is4() && key.device == s.conf.Device {
			return err
		}
	}
	return nil
}

// leave does nothing for a session that has not joined.
func (a *acceptor) leave(s *session) {
	a.mu.Lock()
	if a.waiting[s.conf.PeerAddress] == s {
		delete(a.waiting, s.conf.PeerAddress)
		a.arrange()
	}
	a.mu.Unlock()
	select {
	case conn := <-s.incoming:
		_ = conn.Close()
	default:
	}
}

// arrange listens for exactly the waiting sessions.
func (a *acceptor) arrange() map[listenKey]error {
	want := a.wanted()
	for key, l := range a.open {
		if want[key] == nil {
			_ = l.Close()
			delete(a.open, key)
		}
	}
	failed := map[listenKey]error{}
	for key, sessions := range want {
		l := a.open[key]
		if l != nil {
			failed[key] = l.admit(sessions)
			continue
		}
		l, err := listen(key, sessions)
		if err != nil {
			failed[key] = err
			continue
		}
		a.open[key] = l
		go a.serve(l.TCPListener)
	}
	return failed
}

func (a *acceptor) wanted() map[listenKey][]Session {
	devices := map[bool]map[string]bool{true: {}, false: {}}
	for peer, s := range a.waiting {
		devices[peer.Is4()][s.conf.Device] = true
	}
	want := map[listenKey][]Session{}
	for peer, s := range a.waiting {
		key := listenKey{peer.Is4(), s.conf.Device, len(devices[peer.Is4()]) > 1}
		want[key] = append(want[key], s.conf)
	}
	return want
}

// listen opens a socket that accepts only the routers of sessions, from the beginning.
func listen(key listenKey, sessions []Session) (*listener, error) {
	if err := deviceFault(key.device); err != nil {
		return nil, err
	}
	l := &listener{}
	config := net.ListenConfig{KeepAlive: -1, Control: prepare(func(fd int) error {
		return errors.Join(key.set(fd), l.change(fd, sessions))
	})}
	config.SetMultipathTCP(false) // it has no TCP MD5
	network, any := "tcp6", netip.IPv6Unspecified()
	if key.is4 {
		network, any = "tcp4", netip.IPv4Unspecified()
	}
	socket, err := config.Listen(context.Background(), network,
		net.JoinHostPort(any.String(), strconv.Itoa(defaultPort)))
	if err != nil {
		return nil, listenError(err)
	}
	l.TCPListener = socket.(*net.TCPListener)
	return l, nil
}

// set configures a socket as key says. The answers to SYNs must pass the TTL check of the other
// side, if it has one; accepted connections then get their session's TTL.
func (key listenKey) set(fd int) error {
	var err error
	if key.shared {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}
	return errors.Join(err, bindDevice(fd, key.device), setTTL(fd, key.is4, maxTTL))
}

// admit restricts a listening socket to the routers of sessions.
func (l *listener) admit(sessions []Session) error {
	c, err := l.SyscallConn()
	if err != nil {
		return err
	}
	return control(c, func(fd int) error { return l.change(fd, sessions) })
}

// change never accepts a router without its password, not even briefly.
func (l *listener) change(fd int, sessions []Session) error {
	for _, s := range sessions {
		if !slices.Contains(l.sessions, s) {
			if err := setPassword(fd, s); err != nil {
				return err
			}
		}
	}
	if err := attachFilter(fd, sessions); err != nil {
		return err
	}
	for _, s := range l.sessions {
		if !slices.ContainsFunc(sessions, func(o Session) bool { return o.PeerAddress == s.PeerAddress }) {
			if err := removePassword(fd, s); err != nil {
				return err
			}
		}
	}
	l.sessions = slices.Clone(sessions)
	return nil
}

func attachFilter(fd int, sessions []Session) error {
	raw, err := bpf.Assemble(admission(sessions))
	if err != nil {
		return fmt.Errorf("filter of routers: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return fmt.Errorf("filter of routers: %w", err)
	}
	return nil
}

// network is the base of offsets into the IP header: SKF_NET_OFF of linux/filter.h.
const network = 1<<32 - 0x100000

// admission accepts segments from the sessions' routers if their TTL suffices. Accepted connections
// inherit the filter, so it applies to all their segments.
func admission(sessions []Session) (program []bpf.Instruction) {
	for _, s := range sessions {
		// RFC 791 §3.1, RFC 8200 §3.
		address, ttlAt, sourceAt := s.PeerAddress.AsSlice(), uint32(7), uint32(8)
		if s.PeerAddress.Is4() {
			ttlAt, sourceAt = 8, 12
		}
		least := uint32(0)
		if s.TTLSecurityHops != 0 {
			least = uint32(s.leastTTL())
		}
		verdict := []bpf.Instruction{
			bpf.LoadAbsolute{Off: network + ttlAt, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: least, SkipFalse: 1},
			bpf.RetConstant{Val: math.MaxUint32},
			bpf.RetConstant{Val: 0},
		}
		for i := 0; i < len(address); i += 4 {
			word := uint32(address[i])<<24 | uint32(address[i+1])<<16 | uint32(address[i+2])<<8 | uint32(address[i+3])
			program = append(program,
				bpf.LoadAbsolute{Off: network + sourceAt + uint32(i), Size: 4},
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: word, SkipFalse: uint8(2*((len(address)-i)/4-1) + len(verdict))})
		}
		program = append(program, verdict...)
	}
	return append(program, bpf.RetConstant{Val: 0})
}

// serve accepts until l is closed.
func (a *acceptor) serve(l *net.TCPListener) {
	for {
		conn, err := l.AcceptTCP()
		switch {
		case err == nil:
			a.deliver(conn)
		case errors.Is(err, net.ErrClosed):
			return
		default: // for example, too many open files
			<-time.After(firstPause)
		}
	}
}

func (a *acceptor) deliver(conn *net.TCPConn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// The same link-local address on another interface belongs to another router.
	s := a.waiting[addrOf(conn.RemoteAddr())]
	if s == nil || !s.offer(conn) {
		_ = conn.Close()
	}
}

// listenError explains to an operator why the port is not available.
func listenError(err error) error {
	const what = "this node cannot listen on TCP port 179, as passive wants"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return errors.New(what + ": another program does; is there another BGP speaker?")
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return errors.New(what + ": the speaker needs the capability NET_BIND_SERVICE")
	}
	return fmt.Errorf("%s: %s", what, cause(err))
}

// receive waits for the router's connection, for as long as an attempt to connect may take: then
// the attempt ends with a reason that an operator can read.
func (s *session) receive(ctx context.Context) (*net.TCPConn, error) {
	if err := s.acceptor.join(s); err != nil {
		return nil, err
	}
	patience := time.NewTimer(max(s.conf.connectTime(), time.Second))
	defer patience.Stop()
	select {
	case conn := <-s.incoming:
		if err := s.prepareAccepted(conn); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return conn, nil
	case <-patience.C:
		s.mu.Lock()
		defer s.mu.Unlock()
		if why := s.rejection; why != nil {
			s.rejection = nil
			return nil, why
		}
		return nil, fmt.Errorf("%s has not connected to this node, which waits for that (passive)%s",
			s.conf.PeerAddress, silence(s.conf))
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// prepareAccepted configures an accepted connection like a dialled one.
func (s *session) prepareAccepted(conn *net.TCPConn) error {
	c, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return control(c, func(fd int) error { return setHops(fd, s.conf) })
}

// rightAddress checks the local address that the router has connected to.
func (s *session) rightAddress(local netip.Addr) error {
	local = local.WithZone("")
	if name := s.conf.SourceInterface; name != "" {
		prefixes, err := addressesOf(name)
		if err == nil && !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Addr() == local }) {
			err = fmt.Errorf("router connected to %s of this node, which is not on source interface %s", local, name)
		}
		return err
	}
	if want := s.conf.SourceAddress; want.IsValid() && want.WithZone("") != local {
		return fmt.Errorf("router connected to %s of this node, and sourceAddress says %s", local, want)
	}
	return nil
}

// offer passes a connection that the router has opened to the session, and returns false if the
// connection must be closed. A router that opens another one has lost the previous one, or given it
// up. In an established session only a router with graceful restart may do that (RFC 4271 §6.8, RFC
// 4724 §4.2).
func (s *session) offer(conn *net.TCPConn) bool {
	wrong := s.rightAddress(addrOf(conn.LocalAddr()))
	s.mu.Lock()
	s.rejection = wrong
	s.mu.Unlock()
	if wrong != nil {
		return false
	}
	w, up := s.connection()
	if up {
		if o := w.seen().open; !s.conf.GracefulRestart || o == nil || !o.gracefulRestart {
			return false
		}
	}
	select {
	case s.incoming <- conn:
	default:
		return false
	}
	if w != nil {
		go w.abandon("router opened another connection") // Close may take a moment
	}
	return true
}
