package kube

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

// A relay forwards connections to the API server until it is cut.
type relay struct {
	to       string
	listener net.Listener

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func newRelay(t *testing.T, to string) *relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	r := &relay{to: to, listener: l}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go r.forward(in)
		}
	}()
	return r
}

// forward connects both sides, or closes the connection at once while the relay is cut.
func (r *relay) forward(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer out.Close()
	r.mu.Lock()
	if r.cut {
		r.mu.Unlock()
		return
	}
	r.conns = append(r.conns, in, out)
	r.mu.Unlock()
	go io.Copy(out, in)
	io.Copy(in, out)
}

// set cuts the relay and all connections, or ends that.
func (r *relay) set(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

// askedFor counts requests: lists of everything, and of one object.
type askedFor struct {
	http.RoundTripper
	lists, versions *atomic.Int64
}

func (c askedFor) RoundTrip(r *http.Request) (*http.Response, error) {
	switch q := r.URL.Query(); {
	case q.Get("limit") == "1":
		c.versions.Add(1)
	case q.Get("watch") != "true" || q.Get("sendInitialEvents") == "true":
		c.lists.Add(1)
	}
	return c.RoundTripper.RoundTrip(r)
}

// When the connection to the API server is lost for some seconds, watches resume: what has happened meanwhile
// is seen, and nothing is listed again.
func TestWatchResumesAfterLostConnection(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		f.run("controller")
		must(t, f.Admin().Apply(t.Context(), oneNode+"---"+oneService("web", "10.244.1.5")))
		relay := newRelay(t, strings.TrimPrefix(f.Host(), "https://"))
		config := rest.CopyConfig(f.SpeakerConfig("n1"))
		config.Host = "https://" + netip.MustParseAddrPort(relay.listener.Addr().String()).String()
		var lists, versions atomic.Int64
		config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return askedFor{rt, &lists, &versions} })
		api, err := watch.OpenAPI(t.Context(), config, watch.Options{SecretsOf: "n1", L2: watch.L2Nodes, ReadOnly: true, SkipNamespaces: true, SkipServiceCIDRs: true})
		must(t, err)
		has := func(name string) func() error {
			return func() error {
				if s := api.Snapshot().Service(cluster.Name{Namespace: "default", Name: name}); s == nil || len(s.Status) == 0 {
					return fmt.Errorf("service %s: %+v", name, s)
				}
				return nil
			}
		}
		await(t, time.Minute, "web", has("web"))
		before := lists.Load()
		for i := range 3 {
			name := fmt.Sprint("meanwhile", i)
			relay.set(true)
			must(t, f.Admin().Apply(t.Context(), oneService(name, "10.244.1.6")))
			await(t, time.Minute, "the loss", func() error {
				if api.InStep() {
					return fmt.Errorf("in step")
				}
				return nil
			})
			relay.set(false)
			await(t, time.Minute, name, has(name))
		}
		if got := lists.Load() - before; got != 0 || versions.Load() == 0 {
			t.Errorf("%d lists, %d versions after the losses", got, versions.Load())
		}
	})
}
