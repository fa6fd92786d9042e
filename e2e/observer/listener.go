package observer

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A Namespace is a network namespace. Do runs a function in it.
type Namespace interface{ Do(func() error) error }

// A Listener is a socket whose messages carry the kernel's time.
type Listener struct {
	name   string
	fd     int
	stamps *stamper // nil for packets
	closed atomic.Bool
	done   chan struct{}
}

// An Opener opens a socket in the calling thread's namespace. For netlink, it calls stamp
// before the socket can receive a message: the stamps are matched to messages by their
// order.
type Opener func(stamp func(socket int) error) (socket int, err error)

// Listen opens a socket in a namespace and calls handle for every message. Any error ends
// it and is passed to fail.
func Listen(n Namespace, name string, open Opener, handle func(at time.Time, message []byte) error,
	fail func(error)) (*Listener, error) {
	l := &Listener{name: name, done: make(chan struct{})}
	err := n.Do(func() (err error) {
		if l.fd, err = open(l.stamp); err != nil {
			return err
		}
		// The timeout lets the reader check whether it should end.
		timeout := unix.NsecToTimeval((100 * time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(l.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			return err
		}
		// Messages that do not fit into the buffer are lost.
		return unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	})
	if err != nil {
		return nil, fmt.Errorf("listen to %s: %w", name, err)
	}
	go func() {
		defer close(l.done)
		if err := errors.Join(l.run(handle), l.release()); err != nil {
			fail(fmt.Errorf("listen to %s: %w", name, err))
		}
	}()
	return l, nil
}

func (l *Listener) stamp(socket int) (err error) {
	l.stamps, err = newStamper(socket)
	return err
}

func (l *Listener) run(handle func(time.Time, []byte) error) error {
	message, control := make([]byte, 1<<20), make([]byte, 128)
	for !l.closed.Load() {
		n, c, _, _, err := unix.Recvmsg(l.fd, message, control, 0)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENETDOWN): // the interface of a packet socket; it stays bound
			continue
		case err != nil:
			return err // among others ENOBUFS: messages were lost
		}
		at, err := l.time(control[:c])
		if err != nil {
			return err
		}
		if err := handle(at, message[:n]); err != nil {
			return err
		}
	}
	return nil
}

func (l *Listener) time(control []byte) (time.Time, error) {
	if l.stamps != nil {
		return l.stamps.next()
	}
	return packetTime(control)
}

func (l *Listener) release() error {
	err := unix.Close(l.fd)
	if l.stamps != nil {
		err = errors.Join(err, l.stamps.close())
	}
	return err
}

// Close ends the listening.
func (l *Listener) Close() {
	l.closed.Store(true)
	<-l.done
}
