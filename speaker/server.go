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
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fanfare-lb/fanfare/bgp"
)

const (
	// hangThreshold is how long a pass may take before the speaker counts as hanging, which
	// a restart may mend. What the kernel refuses, or cannot do, a restart does not mend: the
	// next speaker would open no session, and routers would drop all addresses.
	hangThreshold = 3 * time.Minute
	// lateThreshold is how long a change may wait before the speaker is not ready any more.
	lateThreshold = time.Minute
)

// SocketPath is where the speaker with a run directory answers.
func SocketPath(runDir string) string { return filepath.Join(runDir, socketFile) }

// A server answers on the speaker's socket, and on a TCP address if there is one,
// from before there is a cluster to speak of.
type server struct {
	Options
	began         time.Time
	opened        atomic.Pointer[time.Time] // when the source was; nil before
	speaker       atomic.Pointer[speaker]   // nil before the speaker has started
	local, public *http.Server
}

// serve begins to answer. The socket serves /status, /routes, /metrics, /healthz and
// /readyz; TCP all but the first two, which name every Service and address.
func serve(o Options) (*server, error) {
	srv := &server{Options: o, began: time.Now()}
	public := http.NewServeMux()
	public.Handle("GET /metrics", promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{}))
	public.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeHealth(w, srv.unhealthy()) })
	public.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { writeHealth(w, srv.unready()) })
	local := http.NewServeMux()
	local.Handle("/", public)
	local.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { srv.write(w, srv.status()) })
	local.HandleFunc("GET /routes", func(w http.ResponseWriter, r *http.Request) { srv.write(w, srv.routes(r.Context())) })
	l, err := listenUnix(SocketPath(o.RunDir))
	if err != nil {
		return nil, err
	}
	srv.local = &http.Server{Handler: local, ReadHeaderTimeout: 5 * time.Second}
	go srv.local.Serve(l)
	if o.Listen == "" {
		return srv, nil
	}
	l, err = net.Listen("tcp", o.Listen)
	if err != nil {
		srv.Close()
		return nil, fmt.Errorf("metrics and health: %w", err)
	}
	srv.public = &http.Server{Handler: public, ReadHeaderTimeout: 5 * time.Second}
	go srv.public.Serve(l)
	return srv, nil
}

// Close ends both at once.
func (s *server) Close() {
	s.local.Close()
	if s.public != nil {
		s.public.Close()
	}
}

// writeHealth is "ok", or 503 and why not.
func writeHealth(w http.ResponseWriter, trouble string) {
	if trouble != "" {
		http.Error(w, trouble, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// unhealthy says what hangs, so that a restart may help; empty when nothing does: neither
// waiting for the API server does, nor a kernel that refuses.
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

// unready says what the node waits for before it forwards and announces, and that changes
// come late.
func (s *server) unready() string {
	sp := s.speaker.Load()
	switch {
	case s.opened.Load() == nil:
		return fmt.Sprintf("waiting since %s for the API server, which has not been read, with no memory of what it said before; the log says what is in the way",
			s.began.UTC().Format(time.RFC3339))
	case sp == nil || !sp.result.Load().ready:
		return "the kernel does not have the first state yet"
	}
	return sp.result.Load().late()
}

// status is the speaker's, or that it waits.
func (s *server) status() Status {
	if sp := s.speaker.Load(); sp != nil {
		return sp.status()
	}
	return Status{Node: s.Node, Version: s.Version, Started: s.began, Error: s.unready()}
}

// routes are what each router is told, none before the speaker has started.
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

// write answers in JSON.
func (s *server) write(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		s.Log.Debug("answering", "err", err)
	}
}

// listenUnix opens a socket for root alone. What a killed speaker left is
// removed; the lock has made sure that none is alive.
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

// SessionRoutes are what one router is told.
type SessionRoutes struct {
	Session string                `json:"session"`
	State   bgp.SessionState      `json:"state"`
	Error   string                `json:"error,omitempty"` // why Routes are not known
	Routes  []bgp.AdvertisedRoute `json:"routes,omitempty"`
}

// FetchStatus asks the speaker with a run directory for its status.
func FetchStatus(ctx context.Context, runDir string) (*Status, error) {
	var st Status
	if err := fetch(ctx, runDir, "/status", &st); err != nil {
		return nil, err
	}
	return &st, nil
}

// FetchRoutes asks the speaker with a run directory what its routers are told, sorted
// by session.
func FetchRoutes(ctx context.Context, runDir string) (all []SessionRoutes, err error) {
	return all, fetch(ctx, runDir, "/routes", &all)
}

// fetch reads what a speaker's socket answers into a value.
func fetch(ctx context.Context, runDir, path string, into any) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", SocketPath(runDir))
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://speaker"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("no speaker answers at %s; is it running, with this --run-dir? %w", SocketPath(runDir), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", SocketPath(runDir), resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", SocketPath(runDir), err)
	}
	return nil
}
