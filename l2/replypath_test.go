package l2

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A client behind a router reaches a pod by an address on the node's second network only
// when replies leave by this network. The commands in
// docs/tasks/nodes-on-several-networks.md do that.
func TestDocumentedReplyPath(t *testing.T) {
	commands := documented(t, "../docs/tasks/nodes-on-several-networks.md", "nft -f")
	nstest.Run(t, func(t *testing.T) {
		for _, program := range []string{"nft", "ip"} {
			if _, err := exec.LookPath(program); err != nil {
				nstest.Missing(t, err.Error())
			}
		}
		host, near, far := nstest.New(t, "node"), nstest.New(t, "near"), nstest.New(t, "far")
		client, pod := nstest.New(t, "client"), nstest.New(t, "pod")
		nstest.Link(t, host, "eth0", near, "eth0")
		nstest.Link(t, host, "eth1", far, "eth0")
		nstest.Link(t, far, "eth1", client, "eth0")
		nstest.Link(t, host, "pod0", pod, "eth0")
		host.Addr("eth0", "10.0.0.1/24")
		near.Addr("eth0", "10.0.0.2/24", "fd00::2/64")
		host.Addr("eth1", "10.1.0.1/24", "fd01::1/64")
		far.Addr("eth0", "10.1.0.254/24", "fd01::254/64")
		far.Addr("eth1", "203.0.113.1/24", "fd02::1/64")
		client.Addr("eth0", "203.0.113.10/24", "fd02::10/64")
		host.Addr("pod0", "10.244.1.1/24", "fd44::1/64")
		pod.Addr("eth0", "10.244.1.10/24", "fd44::10/64")
		host.Route("0.0.0.0/0", "10.0.0.2", "")
		client.Route("0.0.0.0/0", "203.0.113.1", "")
		client.Route("::/0", "fd02::1", "")
		pod.Route("0.0.0.0/0", "10.244.1.1", "")
		pod.Route("::/0", "fd44::1", "")
		for _, ns := range []*nstest.NS{host, far} {
			ns.Forward()
			ns.Sysctl("ipv4.conf.all.rp_filter", "0")
			ns.Sysctl("ipv4.conf.eth1.rp_filter", "0")
		}
		for _, x := range []struct {
			family, vip, pod string
		}{{"ip", "10.1.0.100", "10.244.1.10"}, {"ip6", "fd01::100", "fd44::10"}} {
			run(t, host, fmt.Sprintf(`nft 'add table %[1]s vip; add chain %[1]s vip in { type nat hook prerouting priority dstnat; }; add rule %[1]s vip in %[1]s daddr %[2]s tcp dport 80 dnat to %[3]s'`, x.family, x.vip, x.pod))
		}
		serve(t, pod)
		n := start(t, host)
		n.set(addresses("10.1.0.100", "fd01::100")...)
		lost := func(when, vip string) {
			t.Helper()
			if seen, err := connect(client, vip, time.Second/4); err == nil {
				t.Errorf("%s: by %s the pod sees %s", when, vip, seen)
			}
		}

		host.Sysctl("ipv4.conf.eth1.rp_filter", "1")
		if p := n.Problems(t.Context(), []netip.Addr{ip("10.1.0.100")}); len(p) != 1 || p[0].Interface != "eth1" ||
			!strings.Contains(p[0].Message, "net.ipv4.conf.eth1.rp_filter is strict") {
			t.Errorf("problems %+v", p)
		}
		lost("strict, and answers go by eth0", "10.1.0.100")
		host.Sysctl("ipv4.conf.eth1.rp_filter", "2")
		lost("answers go by eth0", "10.1.0.100")
		// Problems and AsymmetricPaths report it until the commands have run. IPv6 has no
		// route.
		ours := []netip.Addr{ip("10.0.0.100"), ip("10.1.0.100"), ip("fd01::100")}
		detours := func(want ...AsymmetricPath) {
			t.Helper()
			until(t, func() string {
				if got := n.AsymmetricPaths(t.Context(), ours); !slices.Equal(got, want) {
					return fmt.Sprintf("detours %+v, want %+v", got, want)
				}
				return ""
			})
		}
		detours(AsymmetricPath{Interface: "eth1", By: "eth0"})
		host.Addr("eth0", "fd00::1/64")
		host.Route("::/0", "fd00::2", "")
		detours(AsymmetricPath{Interface: "eth1", By: "eth0"},
			AsymmetricPath{Interface: "eth1", By: "eth0", IPv6: true})
		lost("answers go by eth0", "fd01::100")
		run(t, host, commands)
		detours()
		for vip, want := range map[string]string{"10.1.0.100": "203.0.113.10", "fd01::100": "fd02::10"} {
			if seen, err := connect(client, vip, timeout); err != nil || seen != want {
				t.Errorf("by %s the pod sees %q: %v", vip, seen, err)
			}
		}
	})
}

// documented returns the code block of a document that begins so.
func documented(t *testing.T, name, begin string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	for i, block := range strings.Split(string(b), "\n```\n") {
		if i%2 == 1 && strings.HasPrefix(block, begin) {
			return block
		}
	}
	t.Fatalf("%s: no block begins with %q", name, begin)
	return ""
}

func run(t *testing.T, ns *nstest.NS, commands string) {
	t.Helper()
	inside(t, ns, func() error {
		out, err := exec.Command("sh", "-ec", commands).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// serve sends each client on port 80 its own address.
func serve(t *testing.T, ns *nstest.NS) {
	t.Helper()
	var l net.Listener
	inside(t, ns, func() (err error) {
		l, err = net.Listen("tcp", ":80")
		return err
	})
	t.Cleanup(func() { l.Close() })
	go nstest.Accept(l, func(c net.Conn) {
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		_, _ = io.WriteString(c, host) // the client notices an error
	})
}

func connect(ns *nstest.NS, vip string, limit time.Duration) (seen string, err error) {
	ns.Do(func() {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", net.JoinHostPort(vip, "80"), limit); err != nil {
			return
		}
		defer c.Close()
		var b []byte
		b, err = io.ReadAll(c)
		seen = string(b)
	})
	return seen, err
}
