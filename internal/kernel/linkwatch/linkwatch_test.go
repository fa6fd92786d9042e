package linkwatch

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A subscription signals its beginning and each change. It ends with its context.
func TestRun(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		host := nstest.New(t, "node")
		nstest.Link(t, host, "eth0", nstest.New(t, "far"), "eth0")
		ctx, cancel := context.WithCancel(t.Context())
		changed, done := make(chan struct{}, 1), make(chan struct{})
		go func() {
			host.Do(func() { Run(ctx, changed, unix.RTNLGRP_LINK) })
			close(done)
		}()
		<-changed
		host.Down("eth0")
		<-changed
		cancel()
		<-done
	})
}

// Changes that the kernel dropped because the socket's buffer was full count as one change;
// later ones are received.
func TestOverflow(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		host := nstest.New(t, "node")
		nstest.Link(t, host, "eth0", nstest.New(t, "far"), "eth0")
		var socket *nl.NetlinkSocket
		var err error
		host.Do(func() {
			if socket, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK); err == nil {
				err = socket.SetReceiveBufferSize(1, false) // the kernel's minimum
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(socket.Close)
		until(t, func() string {
			host.Down("eth0")
			host.Up("eth0")
			if _, lost := queue(t, host, socket); lost == 0 {
				return "everything has found room"
			}
			return ""
		})
		changed, done := make(chan struct{}, 1), make(chan struct{})
		go func() { read(socket, changed); close(done) }()
		// The kernel reports the overflow first. A reader that continues has read the rest.
		until(t, func() string {
			if bytes, _ := queue(t, host, socket); bytes > 0 {
				return fmt.Sprintf("%d bytes are unread", bytes)
			}
			return ""
		})
		<-changed
		host.Down("eth0")
		<-changed
		select {
		case <-done:
			t.Error("the socket has no listener")
		default:
		}
		socket.Close()
		<-done
	})
}

// until waits for a condition. holds returns why it is not met yet.
func until(t *testing.T, holds func() string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		why := holds()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(why)
		}
	}
}

// queue returns how many bytes wait in a netlink socket, and how many messages it dropped.
func queue(t *testing.T, ns *nstest.NS, socket *nl.NetlinkSocket) (bytes, lost int) {
	t.Helper()
	var st unix.Stat_t
	var text []byte
	err := unix.Fstat(socket.GetFd(), &st)
	ns.Do(func() {
		if err == nil {
			text, err = os.ReadFile("/proc/thread-self/net/netlink")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		// sk, Eth, Pid, Groups, Rmem, Wmem, Dump, Locks, Drops, Inode
		if f := strings.Fields(line); f[9] == fmt.Sprint(st.Ino) {
			if _, err := fmt.Sscan(f[4]+" "+f[8], &bytes, &lost); err != nil {
				t.Fatal(err)
			}
			return bytes, lost
		}
	}
	t.Fatalf("no socket %d in\n%s", st.Ino, text)
	return 0, 0
}
