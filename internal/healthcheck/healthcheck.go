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

// A Check is what to answer for one Service to those who ask over one address
// family: with a single-stack Service nobody listens on the other one.
type Check struct {
	Namespace, Name string
	Port            uint16
	Family          Family
	// Endpoints is how many pods of this node are ready, of the family.
	Endpoints int
}

// Family is an address family.
type Family uint8

const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// A Failure is a Check that nobody is answered for.
type Failure struct {
	Check
	Err error
}

func (f Failure) Error() string {
	return fmt.Sprintf("service %s/%s: healthCheckNodePort %d over IPv%d: %v", f.Namespace, f.Name, f.Port, f.Family, f.Err)
}

func (f Failure) Unwrap() error { return f.Err }

// A door is where one Check is asked for.
type door struct {
	port   uint16
	family Family
}

func (c Check) door() door { return door{c.Port, c.Family} }

// A Server listens on all of the node's addresses. Set and Close are for one
// goroutine.
type Server struct {
	healthy func() bool
	log     *slog.Logger
	open    map[door]*listener
	last    []Check // as it was called last
	failed  []Failure
}

// A listener answers for the Check that it holds at the time.
type listener struct {
	check  atomic.Pointer[Check]
	server *http.Server
}

// New returns a Server that listens nowhere yet. It asks healthy, from any
// goroutine, whether the node's rules are up to date.
func New(healthy func() bool, log *slog.Logger) *Server {
	return &Server{healthy: healthy, log: log, open: map[door]*listener{}}
}

// Set answers for the given Checks, and for no others. It does as much as it can:
// the Failures say what is not answered for, and are tried again by the next Set.
// Checks must not be written any more.
func (s *Server) Set(ctx context.Context, checks []Check) []Failure {
	if len(s.failed) == 0 && slices.Equal(s.last, checks) {
		return nil
	}
	s.last = checks
	want := make(map[door]Check, len(checks))
	var failed []Failure
	for _, c := range checks {
		if first, taken := want[c.door()]; taken {
			failed = append(failed, Failure{c, fmt.Errorf("%s/%s has the same port; give one of the two another", first.Namespace, first.Name)})
			continue
		}
		want[c.door()] = c
	}
	for d, l := range s.open {
		if _, ok := want[d]; !ok {
			l.server.Close()
			delete(s.open, d)
		}
	}
	for _, d := range slices.SortedFunc(maps.Keys(want), door.compare) {
		if err := s.answer(ctx, want[d]); err != nil {
			failed = append(failed, Failure{want[d], err})
		}
	}
	s.failed = failed
	return failed
}

func (d door) compare(o door) int {
	return cmp.Or(cmp.Compare(d.port, o.port), cmp.Compare(d.family, o.family))
}

// answer opens a door if need be, and puts c behind it.
func (s *Server) answer(ctx context.Context, c Check) error {
	l := s.open[c.door()]
	if l == nil {
		// A socket for one family leaves the other one's port to others, as kube-proxy's do.
		network := "tcp" + strconv.Itoa(int(c.Family))
		socket, err := new(net.ListenConfig).Listen(ctx, network, ":"+strconv.Itoa(int(c.Port)))
		if err != nil {
			return err
		}
		l = &listener{}
		// Whoever reaches the node may ask, so nobody may hold a connection for long.
		l.server = &http.Server{
			Handler:     http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(w, l.check.Load(), s.healthy()) }),
			ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
			ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		}
		l.check.Store(&c)
		s.open[c.door()] = l
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

// Close answers nobody any more.
func (s *Server) Close() {
	s.Set(context.Background(), nil)
}

// write has kube-proxy's words; its own answers are in testdata.
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
