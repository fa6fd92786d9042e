package monitoring

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// With route_localnet, as kube-proxy sets it, a host on the link that has a route for 127.0.0.1 reads
// neither metrics nor health at a loopback address. Processes of the node do.
func TestLoopbackIsOfThisNode(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, host := nstest.New(t, "node"), nstest.New(t, "host")
		nstest.Link(t, node, "eth0", host, "eth0")
		node.Addr("eth0", "192.0.2.1/24")
		host.Addr("eth0", "192.0.2.2/24")
		node.Sysctl("ipv4.conf.all.route_localnet", "1")
		host.Sysctl("ipv4.conf.all.route_localnet", "1")
		host.Do(func() {
			for _, args := range []string{"addr del 127.0.0.1/8 dev lo", "route add 127.0.0.0/8 via 192.0.2.1"} {
				if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
					t.Fatalf("ip %s: %v: %s", args, err, out)
				}
			}
		})
		var s *Server
		var open net.Listener
		node.Do(func() {
			var err error
			s, err = Serve(Options{MetricsAddress: "127.0.0.1:7872", HealthAddress: "127.0.0.1:7873"}, scraped, quiet)
			must(t, err)
			open, err = net.Listen("tcp", "127.0.0.1:7874") // It answers all: the route works.
			must(t, err)
		})
		defer s.Close()
		srv := &http.Server{Handler: scraped, ReadHeaderTimeout: time.Minute}
		go srv.Serve(open)
		defer srv.Close()
		get := func(from *nstest.NS, port int, path string) (err error) {
			from.Do(func() {
				dialer := net.Dialer{Timeout: 10 * time.Second}
				if from == host {
					dialer.LocalAddr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2)}
				}
				var c net.Conn
				if c, err = dialer.Dial("tcp", fmt.Sprint("127.0.0.1:", port)); err != nil {
					return
				}
				defer c.Close()
				c.SetDeadline(time.Now().Add(10 * time.Second))
				fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", path)
				_, err = c.Read(make([]byte, 100))
			})
			return err
		}
		if err := get(host, 7874, "/metrics"); err != nil {
			t.Fatalf("a server that accepts all, from the host: %v", err)
		}
		for port, path := range map[int]string{7872: "/metrics", 7873: "/healthz"} {
			if err := get(node, port, path); err != nil {
				t.Errorf("from the node: %v", err)
			}
			if err := get(host, port, path); err == nil {
				t.Errorf("%s was served to another host", path)
			}
		}
	})
}
