package healthcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// A Check is the response for one Service to clients of one address family. A single-stack
// Service has no listener for the other family.
type Check struct {
	Namespace, Name string
	Port            uint16
	Family          Family
	// Endpoints is the number of ready pods of this node, of the family.
	Endpoints int
}

// Family is an address family.
type Family uint8

const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// A Failure is a Check without a listener.
type Failure struct {
	Check
	Err error
}

func (f Failure) Error() string {
	return fmt.Sprintf("service %s/%s: healthCheckNodePort %d over IPv%d: %v", f.Namespace, f.Name, f.Port, f.Family,
		f.Err)
}

func (f Failure) Unwrap() error { return f.Err }

// An endpoint is where one Check is served.
type endpoint struct {
	port   uint16
	family Family
}

func (c Check) endpoint() endpoint { return endpoint{c.Port, c.Family} }

// A Server listens on all of the node's addresses. Set and Close are not safe for
// concurrent use.
type Server struct {
	healthy func() bool
	log     *slog.Logger
	open    map[endpoint]*listener
	last    []Check // as passed to Set
	failed  []Failure
}

// A listener serves its current Check.
type listener struct {
	check  atomic.Pointer[Check]
	server *http.Server
}

// New returns a Server without listeners. It calls healthy, from any goroutine, to learn
// whether the node's rules are up to date.
func New(healthy func() bool, log *slog.Logger) *Server {
	return &Server{healthy: healthy, log: log, open: map[endpoint]*listener{}}
}

// Set serves the given Checks and no others. It does as much as possible: Failures name the
// Checks without a listener, which the next Set retries. The caller must not modify checks
// after the call.
func (s *Server) Set(ctx context.Context, checks []Check) []Failure {
	if len(s.failed) == 0 && slices.Equal(s.last, checks) {
		return nil
	}
	s.last = checks
	want := make(map[endpoint]Check, len(checks))
	var failed []Failure
	for _, c := range checks {
		if first, taken := want[c.endpoint()]; taken {
			failed = append(failed, Failure{c, fmt.Errorf("%s/%s has the same port; give one of the two another",
				first.Namespace, first.Name)})
			continue
		}
		want[c.endpoint()] = c
	}
	for e, l := range s.open {
		if _, ok := want[e]; !ok {
			l.server.Close()
			delete(s.open, e)
		}
	}
	for _, e := range slices.SortedFunc(maps.Keys(want), endpoint.compare) {
		if err := s.serve(ctx, want[e]); err != nil {
			failed = append(failed, Failure{want[e], err})
		}
	}
	s.failed = failed
	return failed
}

func (e endpoint) compare(o endpoint) int {
	return cmp.Or(cmp.Compare(e.port, o.port), cmp.Compare(e.family, o.family))
}

// serve opens a listener if necessary, and sets its Check.
func (s *Server) serve(ctx context.Context, c Check) error {
	l := s.open[c.endpoint()]
	if l == nil {
		// A socket of one family leaves the other family's port free, as kube-proxy's do.
		network := "tcp" + strconv.Itoa(int(c.Family))
		socket, err := new(net.ListenConfig).Listen(ctx, network, ":"+strconv.Itoa(int(c.Port)))
		if err != nil {
			return err
		}
		l = &listener{}
		// Any client that reaches the node may ask: limit how long it holds a connection.
		l.server = &http.Server{
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				write(w, l.check.Load(), s.healthy())
			}),
			ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
			MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		}
		l.check.Store(&c)
		s.open[c.endpoint()] = l
		go func() {
			if err := l.server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
				s.log.Error("healthCheckNodePort", "service", c.Namespace+"/"+c.Name, "port", c.Port, "err", err)
			}
		}()
		return nil
	}
	l.check.Store(&c)
	return nil
}

// Close closes all listeners.
func (s *Server) Close() {
	s.Set(context.Background(), nil)
}

// write uses kube-proxy's words; its own responses are in testdata.
func write(w http.ResponseWriter, c *Check, healthy bool) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(c.Endpoints))
	if c.Endpoints == 0 || !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintf(w, `{
	"service": {
		"namespace": %q,
		"name": %q
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": %t
}`, c.Namespace, c.Name, c.Endpoints, healthy)
}
