package kube

import (
	"fmt"
	"io"
	"net"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// pods makes this namespace answer for every pod in 10.244.1.0/24: a connection to port
// 8080 receives the pod's address. It adds a route for connections from here to the
// Services' addresses.
func (f *fanfare) pods(vips string) {
	f.Helper()
	node := nstest.Node(f.T)
	node.Addr("lo", "10.244.1.1/24")
	node.Route(vips, "", "lo")
	l, err := net.Listen("tcp4", ":8080")
	must(f.T, err)
	f.Cleanup(func() { l.Close() })
	go nstest.Accept(l, func(c net.Conn) {
		// The client reports a broken connection.
		_, _ = io.WriteString(c, c.LocalAddr().(*net.TCPAddr).IP.String())
	})
}

// answers returns an error unless the pod answers at port 80 of an address.
func answers(vip, pod string) error {
	c, err := net.DialTimeout("tcp4", net.JoinHostPort(vip, "80"), time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && string(got) != pod {
		err = fmt.Errorf("%s was answered by %q, want %s", vip, got, pod)
	}
	return err
}
