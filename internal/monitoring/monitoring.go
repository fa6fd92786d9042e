package monitoring

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"k8s.io/client-go/rest"
)

// Options are what Serve needs.
type Options struct {
	// MetricsAddress is the TCP address of /metrics, HealthAddress that of /healthz and
	// /readyz. Empty: none.
	MetricsAddress, HealthAddress string
	// API is the API server that decides who may read metrics; nil: there is none.
	API *rest.Config
}

// Check returns an error if metrics would be served to every host. They name Services, addresses and
// routers, so that they describe the cluster to an attacker.
func (o Options) Check() error {
	if o.MetricsAddress != "" && !isLoopback(o.MetricsAddress) && o.API == nil {
		return fmt.Errorf("--metrics-address %s: without an API server, which checks the tokens of clients, want a "+
			"loopback address, such as 127.0.0.1:7872", o.MetricsAddress)
	}
	return nil
}

// isLoopback reports whether only processes of this node can connect to an address.
func isLoopback(address string) bool {
	// Of names only localhost is known (RFC 6761 §6.3). Any other could resolve to another address
	// later, and an empty host is every address.
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.Unmap().IsLoopback()
}

// A Handler answers the requests. Healthy and Ready return what is wrong, or nothing.
type Handler struct {
	Metrics        http.Handler
	Healthy, Ready func() string
}

// ServeHTTP answers /metrics, /healthz and /readyz, without any check of the client.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux(true, true).ServeHTTP(w, r) }

// mux serves those of the paths that an address is for. Health has only GET, as the kubelet's httpGet
// probes use it; a mux answers HEAD too.
func (h Handler) mux(metrics, health bool) *http.ServeMux {
	mux := http.NewServeMux()
	if metrics && h.Metrics != nil {
		mux.Handle("GET /metrics", h.Metrics)
	}
	if health {
		mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeHealth(w, h.Healthy()) })
		mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { writeHealth(w, h.Ready()) })
	}
	return mux
}

// writeHealth writes "ok", or 503 with the reason: the kubelet takes any status from 200 to 399 for
// success.
func writeHealth(w http.ResponseWriter, reason string) {
	if reason != "" {
		http.Error(w, reason, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// A Server is what Serve has started. A nil one is closed.
type Server struct{ servers []*http.Server }

// Serve listens at the addresses of the options.
func Serve(o Options, h Handler, log *slog.Logger) (*Server, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := &Server{}
	err := s.listen("health", o.HealthAddress, h.mux(false, true), nil, log)
	if err == nil {
		err = s.serveMetrics(o, h.mux(true, false), log)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// serveMetrics serves metrics: at a loopback address to every client, otherwise as the API
// server decides.
func (s *Server) serveMetrics(o Options, h http.Handler, log *slog.Logger) error {
	if o.MetricsAddress == "" || isLoopback(o.MetricsAddress) {
		return s.listen("metrics", o.MetricsAddress, h, nil, log)
	}
	a, err := newAuthorizer(o.API, h, log)
	if err != nil {
		return err
	}
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	return s.listen("metrics", o.MetricsAddress, a, &tls.Config{Certificates: []tls.Certificate{certificate}}, log)
}

// listen serves h at an address, unless that is empty.
func (s *Server) listen(what, address string, h http.Handler, secure *tls.Config, logger *slog.Logger) error {
	if address == "" {
		return nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if isLoopback(address) {
		l = loopbackListener{l}
	}
	srv := &http.Server{
		// The limits end what a client that sends slowly, or nothing, holds of the process's memory.
		Handler: h, TLSConfig: secure, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
		// A client that fails is not worth a line: on an open port there are many.
		ErrorLog: log.New(debugWriter{logger}, "", 0),
		// Without HTTP/2: it lets one client begin many requests, and Prometheus needs one.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	s.servers = append(s.servers, srv)
	go func() {
		serve := srv.Serve
		if secure != nil {
			serve = func(l net.Listener) error { return srv.ServeTLS(l, "", "") }
		}
		if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("serving ended", "what", what, "err", err)
		}
	}()
	return nil
}

// Close closes all listeners and connections at once.
func (s *Server) Close() {
	if s == nil {
		return
	}
	for _, srv := range s.servers {
		srv.Close()
	}
}

// A loopbackListener accepts only processes of this node. With route_localnet, which kube-proxy's
// iptables mode sets, hosts on a link reach loopback addresses (CVE-2020-8558); only their own address
// shows that. From 127.0.0.1 they would receive no answer, and so open no connection.
type loopbackListener struct{ net.Listener }

// Accept closes other connections.
func (l loopbackListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || isLoopback(c.RemoteAddr().String()) {
			return c, err
		}
		c.Close()
	}
}

type debugWriter struct{ log *slog.Logger }

// Write logs one line at DEBUG.
func (w debugWriter) Write(line []byte) (int, error) {
	w.log.Debug("HTTP", "err", string(line))
	return len(line), nil
}
