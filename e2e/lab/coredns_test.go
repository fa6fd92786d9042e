package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/fanfare-lb/fanfare/e2e/binary"
)

const (
	// lameDuck is how long CoreDNS serves after SIGTERM, as with `health { lameduck 5s }` in the
	// manifests of Kubernetes' installers.
	lameDuck = 5 * time.Second
	// unansweredAfter is a resolver's usual timeout.
	unansweredAfter = 5 * time.Second

	// smallName has one short TXT record, which names the pod. largeName has that and more: largeSize
	// bytes of answer at least, which EDNS admits up to ednsSize.
	smallName, largeName = "pod.lab.", "pod.large."
	largeSize, ednsSize  = 4000, 4096
)

var coreDNSBuilt = sync.OnceValue(func() error { return binary.BuildCoreDNS(context.Background(), coreDNSPath()) })

// coreDNSPath is beside the binary of fanfare.
func coreDNSPath() string {
	path, _ := binaryPath() // options checks the error
	return filepath.Join(filepath.Dir(path), "coredns")
}

// A coreDNS is CoreDNS in the pods of a lab, by pod.
type coreDNS struct {
	l         *Lab
	processes map[string]*Process
}

func newCoreDNS(t *testing.T, l *Lab) *coreDNS {
	t.Helper()
	await(t, coreDNSBuilt())
	return &coreDNS{l: l, processes: map[string]*Process{}}
}

// start starts CoreDNS in pods and waits until each answers.
func (c *coreDNS) start(t *testing.T, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		config := c.l.path("coredns-" + pod)
		await(t, os.WriteFile(config, []byte(corefile(pod)), 0o600))
		var err error
		c.processes[pod], err = c.l.Start(pod, "coredns-"+pod, coreDNSPath(), "-conf", config)
		await(t, err)
	}
	for _, pod := range pods {
		await(t, Await(t.Context(), Settle, "CoreDNS in "+pod, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.l.clientIn(pod).askDNS(ctx, "udp", netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.1:53"),
				smallName)
			return err
		}))
	}
}

// corefile is the configuration of a pod. A large answer fits just into ednsSize.
func corefile(pod string) string {
	text := `{{ .Name }} 0 IN TXT ` + pod + ` {{ .Remote }}`
	return fmt.Sprintf(`. {
	errors
	health 127.0.0.1:8082 {
		lameduck %s
	}
	template IN TXT lab. {
		answer "%s"
	}
	template IN TXT large. {
		answer "%s%s"
	}
}
`, lameDuck, text, text, strings.Repeat(" "+strings.Repeat("x", 255), 15)+" "+strings.Repeat("x", 120))
}

// terminate ends CoreDNS in pods as the kubelet does, and waits until it has ended by itself.
func (c *coreDNS) terminate(t *testing.T, pods ...string) {
	t.Helper()
	var all errgroup.Group
	for _, pod := range pods {
		all.Go(func() error { return c.processes[pod].Stop(syscall.SIGTERM, lameDuck+Settle) })
	}
	await(t, all.Wait())
}

// kill ends CoreDNS in pods at once.
func (c *coreDNS) kill(t *testing.T, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		await(t, c.processes[pod].Stop(syscall.SIGKILL, Settle))
	}
}

// killAll ends CoreDNS wherever it runs.
func (c *coreDNS) killAll(t *testing.T) { c.kill(t, slices.Collect(maps.Keys(c.processes))...) }

// askDNS sends one query for TXT records over UDP or TCP, with EDNS for a large answer, and does not
// repeat it. Saw has no port.
func (c *Client) askDNS(ctx context.Context, network string, from, to netip.AddrPort, name string) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, unansweredAfter)
	defer cancel()
	query := new(dns.Msg).SetQuestion(name, dns.TypeTXT)
	if name == largeName {
		query.SetEdns0(ednsSize, false)
	}
	reply, from, err := c.exchangeDNS(ctx, network, from, to, query)
	if err != nil {
		return Answer{}, fmt.Errorf("%s: %w", network, err)
	}
	if size := reply.Len(); name == largeName && (reply.Truncated || size < largeSize) {
		return Answer{}, fmt.Errorf("%s: answer of %d bytes, truncated %v: want %d", network, size, reply.Truncated,
			largeSize)
	}
	return parseDNS(reply, from)
}

// exchangeDNS sends a query from a socket of its own.
func (c *Client) exchangeDNS(ctx context.Context, network string, from, to netip.AddrPort,
	query *dns.Msg) (*dns.Msg, netip.AddrPort, error) {
	conn, err := c.Dial(ctx, network, from, to)
	if err != nil {
		return nil, from, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	setDeadline(ctx, conn)
	if from, err = netip.ParseAddrPort(conn.LocalAddr().String()); err != nil {
		return nil, from, err
	}
	d := dns.Conn{Conn: conn, UDPSize: ednsSize}
	if err := d.WriteMsg(query); err != nil {
		return nil, from, fmt.Errorf("send: %w", err)
	}
	reply, err := d.ReadMsg()
	if err == nil && (reply.Id != query.Id || reply.Rcode != dns.RcodeSuccess) {
		err = errors.New(reply.String())
	}
	return reply, from, err
}

func parseDNS(reply *dns.Msg, from netip.AddrPort) (Answer, error) {
	if len(reply.Answer) != 1 {
		return Answer{}, errors.New(reply.String())
	}
	text, ok := reply.Answer[0].(*dns.TXT)
	if !ok || len(text.Txt) < 2 {
		return Answer{}, errors.New(reply.String())
	}
	saw, err := netip.ParseAddr(text.Txt[1])
	return Answer{Pod: text.Txt[0], Saw: netip.AddrPortFrom(saw, 0), From: from}, err
}
