package healthcheck

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

const port = 32000

func newServer(t *testing.T, healthy *atomic.Bool) *Server {
	s := New(healthy.Load, slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	return s
}

func web(f Family, endpoints int) Check {
	return Check{Namespace: "shop", Name: "web", Port: port, Family: f, Endpoints: endpoints}
}

var date = regexp.MustCompile(`Date: .*`)

// ask returns the response, or why there is none.
func ask(n *nstest.NS, addr, request string) (answer []byte, err error) {
	n.Do(func() {
		var c net.Conn
		if c, err = net.Dial("tcp", net.JoinHostPort(addr, fmt.Sprint(port))); err != nil {
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: n1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", request)
		answer, err = io.ReadAll(c)
	})
	return date.ReplaceAll(bytes.ReplaceAll(answer, []byte("\r\n"), []byte("\n")), []byte("Date: -")), err
}

// neighbour is a load balancer that can reach this node.
func neighbour(t *testing.T) *nstest.NS {
	lb, node := nstest.New(t, "lb"), nstest.Node(t)
	nstest.Link(t, lb, "eth0", node, "eth0")
	lb.Addr("eth0", "192.0.2.1/24", "2001:db8::1/64")
	node.Addr("eth0", "192.0.2.2/24", "2001:db8::2/64")
	return lb
}

// Each response equals that of kube-proxy's code, byte for byte except the date.
func TestResponsesEqualKubeProxy(t *testing.T) { nstest.Run(t, responsesEqualKubeProxy) }

func responsesEqualKubeProxy(t *testing.T) {
	lb := neighbour(t)
	golden, err := txtar.ParseFile("testdata/kube-proxy.txt")
	if err != nil || len(golden.Files) == 0 {
		t.Fatal("no golden answers", err)
	}
	var healthy atomic.Bool
	s := newServer(t, &healthy)
	for _, f := range golden.Files {
		request, how, _ := strings.Cut(f.Name, " endpoints=")
		var endpoints int
		var well bool
		if _, err := fmt.Sscanf(how, "%d healthy=%t", &endpoints, &well); err != nil {
			t.Fatalf("%q: %v", f.Name, err)
		}
		healthy.Store(well)
		if failed := s.Set(t.Context(), []Check{web(IPv4, endpoints), web(IPv6, endpoints)}); failed != nil {
			t.Fatal(failed)
		}
		for _, addr := range []string{"192.0.2.2", "2001:db8::2"} {
			got, err := ask(lb, addr, request)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(f.Data), string(got)+"\n"); d != "" {
				t.Errorf("%s from %s (-kube-proxy +here):\n%s", f.Name, addr, d)
			}
		}
	}
}

// Each family has its own count and its own listener.
func TestFamilies(t *testing.T) { nstest.Run(t, families) }

func families(t *testing.T) {
	lb := neighbour(t)
	var healthy atomic.Bool
	healthy.Store(true)
	s := newServer(t, &healthy)
	weight := func(addr string) string {
		t.Helper()
		answer, err := ask(lb, addr, "GET /")
		if errors.Is(err, syscall.ECONNREFUSED) {
			return "refused"
		} else if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(answer), "X-Load-Balancing-Endpoint-Weight: ")
		w, _, _ := strings.Cut(rest, "\n")
		return w
	}
	for _, step := range []struct {
		checks    []Check
		four, six string
	}{
		{nil, "refused", "refused"},
		{[]Check{web(IPv4, 2)}, "2", "refused"},
		{[]Check{web(IPv4, 1), web(IPv6, 3)}, "1", "3"},
		{[]Check{web(IPv6, 3)}, "refused", "3"},
		{nil, "refused", "refused"},
		{[]Check{web(IPv4, 1)}, "1", "refused"}, // the same port again
	} {
		if failed := s.Set(t.Context(), step.checks); failed != nil {
			t.Fatal(failed)
		}
		if four, six := weight("192.0.2.2"), weight("2001:db8::2"); four != step.four || six != step.six {
			t.Errorf("%v: weights %s and %s, want %s and %s", step.checks, four, six, step.four, step.six)
		}
	}
}

// A port in use by another process is reported with its Service, does not affect other
// Checks, and is served once it is free.
func TestPortInUse(t *testing.T) { nstest.Run(t, portInUse) }

func portInUse(t *testing.T) {
	lb := neighbour(t)
	taken, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	var healthy atomic.Bool
	healthy.Store(true)
	s := newServer(t, &healthy)
	other := Check{Namespace: "shop", Name: "other", Port: port + 1, Family: IPv4, Endpoints: 1}
	double := Check{Namespace: "shop", Name: "double", Port: port + 1, Family: IPv4, Endpoints: 1}
	checks := []Check{web(IPv4, 1), web(IPv6, 1), other, double}
	failed := s.Set(t.Context(), checks)
	if len(failed) != 2 || failed[0].Name != "double" || failed[1].Check != web(IPv4, 1) ||
		!errors.Is(failed[1], syscall.EADDRINUSE) {
		t.Fatalf("failures: %v", failed)
	}
	for _, want := range []string{"shop/web", fmt.Sprint(port), "IPv4", "in use"} {
		if !strings.Contains(failed[1].Error(), want) {
			t.Errorf("%v; want %q in it", failed[1], want)
		}
	}
	if !strings.Contains(failed[0].Error(), "shop/other has the same port") {
		t.Error(failed[0])
	}
	if _, err := ask(lb, "2001:db8::2", "GET /"); err != nil {
		t.Error("IPv6 is not answered:", err)
	}
	taken.Close()
	if failed = s.Set(t.Context(), checks); len(failed) != 1 {
		t.Errorf("failures although the port is free: %v", failed)
	}
	answer, err := ask(lb, "192.0.2.2", "GET /")
	if err != nil || !bytes.Contains(answer, []byte(http.StatusText(http.StatusOK))) {
		t.Errorf("%s, %v", answer, err)
	}
}
