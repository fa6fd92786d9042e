package speaker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/monitoring"
	"github.com/fanfare-lb/fanfare/speaker/rundir"
)

const (
	// hangThreshold is how long a pass may take until the speaker reports itself as
	// unhealthy, so that the kubelet restarts it. Errors of the kernel are not unhealthy:
	// the next speaker would open no session, and routers would drop all addresses.
	hangThreshold = 3 * time.Minute
	// lateThreshold is how long a change may wait until the speaker is not ready.
	lateThreshold = time.Minute
)

// A server serves the status socket, and metrics and health on TCP if configured. It starts
// before the API server has been read.
type server struct {
	Options
	began   time.Time
	opened  atomic.Pointer[time.Time] // when the source was opened; nil before
	speaker atomic.Pointer[speaker]   // nil before the speaker has started
	local   *http.Server
	public  *monitoring.Server
}

// serve starts a server. The socket has /status, /routes, /metrics, /healthz and /readyz.
// TCP lacks the first two, which contain every Service and address.
func serve(o Options) (*server, error) {
	srv := &server{Options: o, began: time.Now()}
	public := monitoring.Handler{
		Metrics: promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{}), Healthy: srv.unhealthy, Ready: srv.unready,
	}
	local := http.NewServeMux()
	local.Handle("/", public)
	local.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { srv.write(w, srv.status()) })
	local.HandleFunc("GET /routes", func(w http.ResponseWriter, r *http.Request) {
		srv.write(w, srv.routes(r.Context()))
	})
	l, err := listenUnix(rundir.SocketPath(o.RunDir))
	if err != nil {
		return nil, err
	}
	srv.local = &http.Server{Handler: local, ReadHeaderTimeout: 5 * time.Second}
	go srv.local.Serve(l)
	if srv.public, err = monitoring.Serve(o.Monitoring, public, o.Log); err != nil {
		srv.Close()
		return nil, err
	}
	return srv, nil
}

// Close closes all listeners at once.
func (s *server) Close() {
	s.local.Close()
	s.public.Close()
}

// unhealthy returns what hangs, so that a restart may help, and is empty otherwise. Waiting
// for the API server and errors of the kernel are healthy.
func (s *server) unhealthy() string {
	began, what := s.opened.Load(), "the start"
	if sp := s.speaker.Load(); sp != nil {
		began, what = sp.passBegan.Load(), "a pass"
	}
	if began == nil || time.Since(*began) <= hangThreshold {
		return ""
	}
	return fmt.Sprintf("%s hangs: it began at %s and has not ended", what, began.UTC().Format(time.RFC3339))
}

// unready returns what the node waits for before it forwards and announces, or that changes
// are late.
func (s *server) unready() string {
	sp := s.speaker.Load()
	switch {
	case s.opened.Load() == nil:
		return fmt.Sprintf("waiting since %s for the API server, without a recent snapshot of an earlier speaker; "+
			"the log has the reason",
			s.began.UTC().Format(time.RFC3339))
	case sp == nil || !sp.result.Load().ready:
		return "the kernel is not programmed yet"
	}
	return sp.result.Load().late()
}

// status returns the speaker's status, or what its start waits for.
func (s *server) status() Status {
	if sp := s.speaker.Load(); sp != nil {
		return sp.status()
	}
	return Status{Node: s.Node, Version: s.Version, Started: s.began, Error: s.unready()}
}

// routes returns the routes of each session, none before the speaker has started.
func (s *server) routes(ctx context.Context) []SessionRoutes {
	sp := s.speaker.Load()
	if sp == nil {
		return nil
	}
	var all []SessionRoutes
	for _, x := range sp.bgp.Status().Sessions {
		r := SessionRoutes{Session: x.Name, State: x.State}
		var err error
		if r.Routes, err = sp.bgp.Advertised(ctx, x.Name); err != nil {
			r.Error = err.Error()
		}
		all = append(all, r)
	}
	return all
}

// write writes JSON.
func (s *server) write(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		s.Log.Debug("response not written", "err", err)
	}
}

// listenUnix opens a socket for root only. It removes the socket of a killed speaker; the
// lock excludes a running one.
func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("status socket: %w", err)
	}
	return l, nil
}

// SessionRoutes are the routes that are advertised to one router.
type SessionRoutes struct {
	Session string                `json:"session"`
	State   bgp.SessionState      `json:"state"`
	Error   string                `json:"error,omitempty"` // why Routes are unknown
	Routes  []bgp.AdvertisedRoute `json:"routes,omitempty"`
}

// FetchStatus returns the status of the speaker with a run directory.
func FetchStatus(ctx context.Context, runDir string) (*Status, error) {
	var st Status
	if err := fetch(ctx, runDir, "/status", &st); err != nil {
		return nil, err
	}
	return &st, nil
}

// FetchRoutes returns what the speaker with a run directory advertises, sorted by session.
func FetchRoutes(ctx context.Context, runDir string) (all []SessionRoutes, err error) {
	return all, fetch(ctx, runDir, "/routes", &all)
}

// fetch decodes a response of a speaker's socket into a value.
func fetch(ctx context.Context, runDir, path string, into any) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", rundir.SocketPath(runDir))
		}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://speaker"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("no speaker answers at %s; is it running, with this --run-dir? %w", rundir.SocketPath(runDir),
			err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", rundir.SocketPath(runDir), resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", rundir.SocketPath(runDir), err)
	}
	return nil
}
