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
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// unhealthyAfter is how long a change may wait before the speaker counts as
// unhealthy. Liveness is that changes are applied, not that a port is open.
const unhealthyAfter = time.Minute

// SocketPath is where the speaker with a run directory answers.
func SocketPath(runDir string) string { return filepath.Join(runDir, "speaker.sock") }

// A server answers on the speaker's socket, and on a TCP address if there is one.
type server struct {
	local, public *http.Server
}

// serve begins to answer. The socket serves /status, /metrics, /healthz and
// /readyz; TCP all but /status, which names every Service.
func (s *speaker) serve() (*server, error) {
	public := http.NewServeMux()
	public.Handle("GET /metrics", promhttp.HandlerFor(s.Registry, promhttp.HandlerOpts{}))
	public.HandleFunc("GET /healthz", s.healthz)
	public.HandleFunc("GET /readyz", s.readyz)
	local := http.NewServeMux()
	local.Handle("/", public)
	local.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(s.status()); err != nil {
			s.Log.Debug("status", "err", err)
		}
	})
	var srv server
	l, err := listenUnix(SocketPath(s.RunDir))
	if err != nil {
		return nil, err
	}
	srv.local = &http.Server{Handler: local, ReadHeaderTimeout: 5 * time.Second}
	go srv.local.Serve(l)
	if s.Listen == "" {
		return &srv, nil
	}
	l, err = net.Listen("tcp", s.Listen)
	if err != nil {
		srv.Close()
		return nil, fmt.Errorf("metrics and health: %w", err)
	}
	srv.public = &http.Server{Handler: public, ReadHeaderTimeout: 5 * time.Second}
	go srv.public.Serve(l)
	return &srv, nil
}

// Close ends both at once.
func (s *server) Close() {
	s.local.Close()
	if s.public != nil {
		s.public.Close()
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

func (s *speaker) healthz(w http.ResponseWriter, _ *http.Request) {
	if behind := s.published.Load().behind; !behind.IsZero() && time.Since(behind) > unhealthyAfter {
		http.Error(w, fmt.Sprintf("a change has been waiting since %s", behind.Format(time.RFC3339)), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (s *speaker) readyz(w http.ResponseWriter, _ *http.Request) {
	if !s.published.Load().ready {
		http.Error(w, "the kernel does not have the first state yet", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// Ask asks the speaker with a run directory for its status.
func Ask(ctx context.Context, runDir string) (*Status, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", SocketPath(runDir))
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://speaker/status", nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no speaker answers at %s; is it running, with this --run-dir? %w", SocketPath(runDir), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", SocketPath(runDir), resp.Status)
	}
	var st Status
	if err := json.NewDecoder(resp.Body).Decode(&st); err != nil {
		return nil, fmt.Errorf("%s: %w", SocketPath(runDir), err)
	}
	return &st, nil
}
