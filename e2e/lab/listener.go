package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A listener is a socket whose messages are read at once. What is told of two
// kernels' doings is only as good as the times at which it was heard, and a
// goroutine may wait for milliseconds on a busy machine. So each listener has a
// thread of its own, before all others.
type listener struct {
	name   string
	fd     int
	closed atomic.Bool
	done   chan struct{}
}

// beforeOthers is a nice value.
const beforeOthers = -20

// listen opens a socket in a namespace and calls heard, on the listener's thread,
// for everything received: at is when the kernel had it if the socket tells, else
// when the thread woke up.
func listen(n *Namespace, name string, open func() (int, error), heard func(at time.Time, message []byte) error, fail func(error)) (*listener, error) {
	l := &listener{name: name, done: make(chan struct{})}
	err := n.Do(func() (err error) {
		if l.fd, err = open(); err != nil {
			return err
		}
		// Reading blocks the thread; it looks up now and then to see whether
		// it shall end.
		timeout := unix.NsecToTimeval((100 * time.Millisecond).Nanoseconds())
		return errors.Join(unix.SetsockoptTimeval(l.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
			unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
	})
	if err != nil {
		return nil, fmt.Errorf("listen to %s: %w", name, err)
	}
	go func() {
		defer close(l.done)
		defer unix.Close(l.fd)
		// Never unlocked: the thread ends with the goroutine, and its
		// priority with it.
		runtime.LockOSThread()
		if err := l.run(heard); err != nil {
			fail(fmt.Errorf("listen to %s: %w", name, err))
		}
	}()
	return l, nil
}

func (l *listener) run(heard func(time.Time, []byte) error) error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), beforeOthers); err != nil {
		return err
	}
	message, control := make([]byte, 1<<20), make([]byte, 128)
	for !l.closed.Load() {
		n, c, _, _, err := unix.Recvmsg(l.fd, message, control, 0)
		at := time.Now()
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err // ENOBUFS among others: something was missed
		}
		if stamp, ok := timestamp(control[:c]); ok {
			at = stamp
		}
		if err := heard(at, message[:n]); err != nil {
			return err
		}
	}
	return nil
}

// timestamp is the kernel's, of a socket with SO_TIMESTAMPNS.
func timestamp(control []byte) (time.Time, bool) {
	all, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, false
	}
	for _, m := range all {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:]))), true
		}
	}
	return time.Time{}, false
}

func (l *listener) close() {
	l.closed.Store(true)
	<-l.done
}
