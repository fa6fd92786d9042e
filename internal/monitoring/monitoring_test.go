package monitoring

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var quiet = slog.New(slog.DiscardHandler)

// Metrics without a check of clients are at loopback addresses only.
func TestCheck(t *testing.T) {
	for address, loopback := range map[string]bool{
		"": true, "127.0.0.1:7872": true, "127.9.9.9:1": true, "[::1]:7872": true, "localhost:7872": true,
		"[::ffff:127.0.0.1]:7872": true, ":7872": false, "0.0.0.0:7872": false, "[::]:7872": false,
		"192.0.2.1:7872": false, "node1:7872": false, "7872": false, "localhost.example:7872": false,
	} {
		if err := (Options{MetricsAddress: address}).Check(); (err == nil) != loopback {
			t.Errorf("%q without an API server: %v", address, err)
		}
		if err := (Options{MetricsAddress: address, API: &rest.Config{}}).Check(); err != nil {
			t.Errorf("%q with an API server: %v", address, err)
		}
	}
	if _, err := Serve(Options{MetricsAddress: ":0"}, Handler{}, quiet); err == nil ||
		!strings.Contains(err.Error(), "--metrics-address :0") {
		t.Errorf("Serve: %v", err)
	}
}

// A reviewer answers reviews as an API server: it knows the tokens of two accounts, of which one
// may read metrics.
type reviewer struct {
	mu      sync.Mutex
	asked   []string
	refuses bool // the right of the account that had it
	broken  bool
}

func (r *reviewer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var o struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
		Spec       struct {
			Token                 string                      `json:"token"`
			User                  string                      `json:"user"`
			Groups                []string                    `json:"groups"`
			Extra                 map[string][]string         `json:"extra"`
			NonResourceAttributes struct{ Path, Verb string } `json:"nonResourceAttributes"`
		} `json:"spec"`
		Status map[string]any `json:"status"`
	}
	if err := json.NewDecoder(req.Body).Decode(&o); err != nil || r.broken {
		http.Error(w, fmt.Sprint(err), http.StatusInternalServerError)
		return
	}
	switch {
	case strings.HasSuffix(req.URL.Path, "/tokenreviews"):
		r.asked = append(r.asked, "whose is "+o.Spec.Token)
		account, _, _ := strings.Cut(strings.TrimPrefix(o.Spec.Token, "of "), "#") // An account has many tokens.
		o.Status = map[string]any{"authenticated": strings.HasPrefix(o.Spec.Token, "of "), "user": map[string]any{
			"username": account, "groups": []string{"system:authenticated"},
			"extra": map[string]any{"scopes": []string{"x"}}}}
	default:
		r.asked = append(r.asked, fmt.Sprintf("may %s %v %v %s %s", o.Spec.User, o.Spec.Groups, o.Spec.Extra,
			o.Spec.NonResourceAttributes.Verb, o.Spec.NonResourceAttributes.Path))
		o.Status = map[string]any{"allowed": o.Spec.User == "prometheus" && !r.refuses}
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(o)
}

func (r *reviewer) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// takeAsked returns what was asked since the last call.
func (r *reviewer) takeAsked() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := strings.Join(r.asked, "; ")
	r.asked = nil
	return s
}

// Metrics are for tokens of accounts that may read them, and decisions last for a while.
func TestAuthorizer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := &reviewer{}
		a, err := newAuthorizer(&rest.Config{Host: "http://api", Transport: roundTripper{api}},
			Handler{Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "fanfare_up 1")
			})}.mux(true, false), quiet)
		must(t, err)
		get := func(want int, authorization, path, asked string) {
			t.Helper()
			r := httptest.NewRequest(http.MethodGet, path, nil)
			if authorization != "" {
				r.Header.Set("Authorization", authorization)
			}
			w := httptest.NewRecorder()
			a.ServeHTTP(w, r)
			if w.Code != want || strings.Contains(w.Body.String(), "fanfare_up") != (want == http.StatusOK) {
				t.Errorf("%q %s: %d, want %d: %s", authorization, path, w.Code, want, w.Body)
			}
			if (want == http.StatusUnauthorized) != (w.Header().Get("WWW-Authenticate") == "Bearer") {
				t.Errorf("%q %s: %d with the header %q", authorization, path, w.Code, w.Header())
			}
			if got := api.takeAsked(); got != asked {
				t.Errorf("%q %s: asked %q, want %q", authorization, path, got, asked)
			}
		}
		const may = "may prometheus [system:authenticated] map[scopes:[x]] get /metrics"
		get(401, "", "/metrics", "")
		get(401, "Bearer ", "/metrics", "")
		get(401, "Basic cHJvbWV0aGV1czp4", "/metrics", "")
		get(401, "Bearer wrong", "/metrics", "whose is wrong")
		get(403, "Bearer of tenant", "/metrics",
			"whose is of tenant; may tenant [system:authenticated] map[scopes:[x]] get /metrics")
		get(200, "Bearer of prometheus", "/metrics", "whose is of prometheus; "+may)
		get(404, "Bearer of prometheus", "/status",
			"whose is of prometheus; "+strings.ReplaceAll(may, "metrics", "status"))
		for range 3 {
			get(401, "Bearer wrong", "/metrics", "")
			get(403, "Bearer of tenant", "/metrics", "")
			get(200, "Bearer of prometheus", "/metrics", "")
		}
		api.change(func() { api.refuses = true })
		<-time.After(refusedFor + time.Second)
		get(401, "Bearer wrong", "/metrics", "whose is wrong")
		get(200, "Bearer of prometheus", "/metrics", "")
		<-time.After(allowedFor)
		get(403, "Bearer of prometheus", "/metrics", "whose is of prometheus; "+may)
		api.change(func() { api.broken, api.refuses = true, false })
		<-time.After(allowedFor)
		get(503, "Bearer of prometheus", "/metrics", "")
		api.change(func() { api.broken = false })
		get(200, "Bearer of prometheus", "/metrics", "whose is of prometheus; "+may)
		for i := range 3 * maxDecisions {
			a.remember([32]byte{byte(i), byte(i >> 8)}, netip.Prefix{}, 401, time.Now())
		}
		if len(a.refused) > maxDecisions {
			t.Errorf("%d refused tokens are remembered", len(a.refused))
		}
		get(200, "Bearer of prometheus", "/metrics", "")
	})
}

type roundTripper struct{ http.Handler }

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w.Result(), nil
}

// Health is served without encryption and metrics are not served there. Metrics at any address
// but a loopback one are encrypted.
func TestServe(t *testing.T) {
	api := httptest.NewServer(&reviewer{})
	defer api.Close()
	free := func(host string) string {
		l, err := net.Listen("tcp", host+":0")
		must(t, err)
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		return host + ":" + port
	}
	h := Handler{Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "fanfare_up 1")
	}),
		Healthy: func() string { return "" }, Ready: func() string { return "waits" }}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for _, host := range []string{"127.0.0.1", "0.0.0.0"} {
		o := Options{MetricsAddress: free(host), HealthAddress: free("127.0.0.1"), API: &rest.Config{Host: api.URL}}
		s, err := Serve(o, h, quiet)
		must(t, err)
		get := func(url, token, want string) {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			must(t, err)
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			resp, err := client.Do(r)
			must(t, err)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			must(t, err)
			if got := fmt.Sprintf("%d %s", resp.StatusCode, body); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %s, want %s", url, got, want)
			}
		}
		get("http://"+o.HealthAddress+"/healthz", "", "200 ok")
		get("http://"+o.HealthAddress+"/readyz", "", "503 waits")
		get("http://"+o.HealthAddress+"/metrics", "", "404")
		at := strings.Replace(o.MetricsAddress, "0.0.0.0", "127.0.0.1", 1)
		if host == "127.0.0.1" {
			get("http://"+at+"/metrics", "", "200 fanfare_up 1")
			get("http://"+at+"/healthz", "", "404")
		} else {
			get("http://"+at+"/metrics", "", "400 Client sent an HTTP request to an HTTPS server")
			get("https://"+at+"/metrics", "", "401")
			get("https://"+at+"/metrics", "of tenant", "403")
			get("https://"+at+"/metrics", "of prometheus", "200 fanfare_up 1")
			get("https://"+at+"/healthz", "", "401")
		}
		if _, err := Serve(o, h, quiet); err == nil {
			t.Error("the same addresses twice: no error")
		}
		s.Close()
		client.CloseIdleConnections()
	}
	(*Server)(nil).Close()
}
