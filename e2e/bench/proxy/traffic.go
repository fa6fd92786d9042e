package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A packet's path, from the client's system call through the node into the server's socket,
// runs on the CPU of the sender: veth has no other. So the client has its own CPU, the
// server's threads have another, and the client's rate shows the cost of the path.
var clientCPU, serverCPU = 0, runtime.NumCPU() - 1

// podPort is the server's port for both protocols.
const podPort = 8080

// A server accepts connections and reads datagrams on all pods' addresses.
type server struct {
	tcp, udp int
	answers  atomic.Bool  // clients send requests
	received atomic.Int64 // datagrams
	threads  sync.WaitGroup
	place    *lab.Namespace
}

func serve(place *lab.Namespace) (*server, error) {
	s := &server{place: place}
	err := place.Do(func() (err error) {
		if s.tcp, err = listen(unix.SOCK_STREAM); err == nil {
			s.udp, err = listen(unix.SOCK_DGRAM)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.threads.Go(s.accept)
	s.threads.Go(s.read)
	return s, nil
}

func listen(kind int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: podPort}); err != nil {
		return -1, err
	}
	if kind == unix.SOCK_STREAM {
		return fd, unix.Listen(fd, 4096)
	}
	return fd, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
}

func (s *server) accept() {
	defer pin(serverCPU)()
	for {
		fd, _, err := unix.Accept4(s.tcp, unix.SOCK_CLOEXEC)
		switch {
		case err == nil:
			if s.answers.Load() {
				answer(fd)
			}
			unix.Close(fd)
		case errors.Is(err, unix.EINVAL): // the listener was closed
			return
		}
	}
}

// Sizes of a request and its answer, as of HTTP with few headers.
const (
	requestSize = 100
	answerSize  = 200
)

// answer answers a request, if the client sends one. Clients connect one after the other,
// so that none waits behind a silent one.
func answer(fd int) {
	if readAll(fd, requestSize) == nil {
		_, _ = unix.Write(fd, make([]byte, answerSize)) // the client checks the answer
	}
}

func readAll(fd, size int) error {
	buf := make([]byte, size)
	for n := 0; n < size; {
		more, err := unix.Read(fd, buf[n:])
		if err == nil && more == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		n += more
	}
	return nil
}

func (s *server) read() {
	defer pin(serverCPU)()
	buf := make([]byte, 64)
	for {
		n, err := unix.Read(s.udp, buf)
		if n == 0 && err == nil { // closed: clients send no empty datagrams
			return
		}
		if err == nil {
			s.received.Add(1)
		}
	}
}

// arrived returns how many datagrams have reached the server so far: those read, and those
// dropped at a full buffer after the same path.
func (s *server) arrived() (n int64, err error) {
	err = s.place.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err == nil {
			n, err = snmp(string(text), "Udp", "RcvbufErrors")
		}
		return err
	})
	return n + s.received.Load(), err
}

// snmp reads a counter of /proc/net/snmp, in which a line of names precedes a line of
// values.
func snmp(text, protocol, name string) (int64, error) {
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != protocol+":" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, n := range names {
			if n == name && i < len(fields) {
				return strconv.ParseInt(fields[i], 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("/proc/net/snmp: no %s of %s", name, protocol)
}

func (s *server) close() error {
	// Shutdown wakes the readers; for UDP it returns ENOTCONN and works anyway.
	err := unix.Shutdown(s.tcp, unix.SHUT_RDWR)
	if e := unix.Shutdown(s.udp, unix.SHUT_RDWR); !errors.Is(e, unix.ENOTCONN) {
		err = errors.Join(err, e)
	}
	s.threads.Wait()
	return errors.Join(err, unix.Close(s.tcp), unix.Close(s.udp))
}

// pin binds the calling goroutine to a thread, and the thread to a CPU, until the returned
// function is called.
func pin(cpu int) (unpin func()) {
	runtime.LockOSThread()
	var had, want unix.CPUSet
	want.Set(cpu)
	// Without the permission the measurement is less exact.
	if unix.SchedGetaffinity(0, &had) != nil || unix.SchedSetaffinity(0, &want) != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		_ = unix.SchedSetaffinity(0, &had) // it was allowed before
		runtime.UnlockOSThread()
	}
}

// A rate is a number per second.
type rate float64

// connections opens one TCP connection after the other and returns the number per second. A
// failed connection is an error.
func connections(place *lab.Namespace, to []netip.AddrPort, span time.Duration,
	use func(fd int) error) (r rate, err error) {
	targets := sockaddrs(to)
	err = place.Do(func() error {
		defer pin(clientCPU)()
		began, n := time.Now(), 0
		for ; n%16 != 0 || time.Since(began) < span; n++ {
			if err := connection(targets[n%len(targets)], use); err != nil {
				return fmt.Errorf("connect to %s: %w", to[n%len(to)], err)
			}
		}
		r = rate(float64(n) / time.Since(began).Seconds())
		return nil
	})
	return r, err
}

// connection opens a connection, uses it and resets it, so that no port is left in
// TIME_WAIT.
func connection(to *unix.SockaddrInet4, use func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if err == nil {
		err = unix.Connect(fd, to)
	}
	if err == nil {
		err = use(fd)
	}
	return errors.Join(err, unix.Close(fd))
}

// idle uses a connection for nothing.
func idle(int) error { return nil }

// ask sends a request and waits for the answer.
func ask(fd int) error {
	if _, err := unix.Write(fd, make([]byte, requestSize)); err != nil {
		return err
	}
	return readAll(fd, answerSize)
}

// flowCount is the number of concurrent UDP flows.
const flowCount = 64

// datagrams sends small datagrams in a number of flows in turn, and returns the number per
// second that reached the server.
func datagrams(ctx context.Context, place *lab.Namespace, s *server, to []netip.AddrPort,
	span time.Duration) (r rate, err error) {
	before, err := s.arrived()
	if err != nil {
		return 0, err
	}
	var sent int64
	var took time.Duration
	if err := place.Do(func() (err error) {
		sent, took, err = send(sockaddrs(to), span)
		return err
	}); err != nil {
		return 0, err
	}
	var arrived int64
	err = lab.Await(ctx, 5*time.Second, "datagrams", func() error {
		now, err := s.arrived()
		if arrived = now - before; err == nil && arrived < sent {
			err = fmt.Errorf("of %d sent %d arrived", sent, arrived)
		}
		return err
	})
	return rate(float64(arrived-flowCount) / took.Seconds()), err // without the first datagram of each flow
}

func send(to []*unix.SockaddrInet4, span time.Duration) (sent int64, took time.Duration, err error) {
	defer pin(clientCPU)()
	fds, err := flows(to)
	defer func() {
		for _, fd := range fds {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	if err != nil {
		return 0, 0, err
	}
	small := []byte{'x'}
	round := func() error {
		for _, fd := range fds {
			if _, err := unix.Write(fd, small); err != nil {
				return err
			}
			sent++
		}
		return nil
	}
	if err := round(); err != nil { // this round opens the flows
		return sent, 0, err
	}
	began := time.Now()
	for err == nil && time.Since(began) < span {
		err = round()
	}
	return sent, time.Since(began), err
}

func flows(to []*unix.SockaddrInet4) (fds []int, err error) {
	for i := range flowCount {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fds, err
		}
		fds = append(fds, fd)
		if err := unix.Connect(fd, to[i%len(to)]); err != nil {
			return fds, err
		}
	}
	return fds, nil
}

func sockaddrs(to []netip.AddrPort) []*unix.SockaddrInet4 {
	all := make([]*unix.SockaddrInet4, len(to))
	for i, a := range to {
		all[i] = &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return all
}
