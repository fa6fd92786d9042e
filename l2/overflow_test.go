package l2

import (
	"fmt"
	"os"
	"strings"
	"testing"

	rtnl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// Changes that the kernel dropped because the socket's buffer was full count as one change;
// later ones are received.
func TestNetlinkOverflow(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		host := nstest.New(t, "node")
		nstest.Link(t, host, "eth0", nstest.New(t, "far"), "eth0")
		var conn *rtnl.Conn
		inside(t, host, func() (err error) {
			if conn, err = subscribeLinks(); err == nil {
				err = conn.SetReadBuffer(1) // the kernel's minimum
			}
			return err
		})
		t.Cleanup(func() { conn.Close() })
		until(t, func() string {
			host.Down("eth0")
			host.Up("eth0")
			if _, lost := queue(t, host, conn); lost == 0 {
				return "everything has found room"
			}
			return ""
		})
		k, done := &worker{changes: make(chan struct{}, 1)}, make(chan struct{})
		go func() { k.readChanges(conn); close(done) }()
		// The kernel reports the overflow first. A reader that continues has read the rest.
		until(t, func() string {
			if bytes, _ := queue(t, host, conn); bytes > 0 {
				return fmt.Sprintf("%d bytes are unread", bytes)
			}
			return ""
		})
		<-k.changes
		host.Down("eth0")
		<-k.changes
		select {
		case <-done:
			t.Error("the socket has no listener")
		default:
		}
		conn.Close()
		<-done
	})
}

// queue returns how many bytes wait in a netlink socket, and how many messages it dropped.
func queue(t *testing.T, ns *nstest.NS, conn *rtnl.Conn) (bytes, lost int) {
	t.Helper()
	raw, err := conn.SyscallConn()
	must(t, err)
	var st unix.Stat_t
	failed := raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) })
	must(t, failed)
	must(t, err)
	inside(t, ns, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netlink")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			// sk, Eth, Pid, Groups, Rmem, Wmem, Dump, Locks, Drops, Inode
			if f := strings.Fields(line); f[9] == fmt.Sprint(st.Ino) {
				_, err = fmt.Sscan(f[4]+" "+f[8], &bytes, &lost)
				return err
			}
		}
		return fmt.Errorf("no socket %d in\n%s", st.Ino, text)
	})
	return bytes, lost
}
