package monitoring

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

var scraped = Handler{
	Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "fanfare_up 1") }),
	Healthy: func() string { return "" }, Ready: func() string { return "" },
}

// Over HTTPS, hundreds of wrong tokens from the address of Prometheus fail none of its scrapes, and
// most of them cost the API server nothing.
func TestScrapesAmongWrongTokens(t *testing.T) {
	api := &reviewer{}
	server := httptest.NewServer(api)
	defer server.Close()
	a, err := newAuthorizer(&rest.Config{Host: server.URL}, scraped.mux(true, false), quiet)
	must(t, err)
	metrics := httptest.NewTLSServer(a)
	defer metrics.Close()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(token string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, metrics.URL+"/metrics", nil)
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(r)
		if err != nil {
			t.Error(err)
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	began := time.Now()
	if got := get("of prometheus"); got != 200 {
		t.Fatalf("the first scrape: %d", got)
	}
	var flood sync.WaitGroup
	for i := range 37 {
		for j := range 4 {
			flood.Go(func() {
				for k := range 5 {
					if got := get(fmt.Sprint("wrong ", i, j, k)); got != 401 && got != 429 {
						t.Errorf("a wrong token: %d", got)
					}
				}
			})
		}
		if got := get("of prometheus"); got != 200 {
			t.Errorf("scrape %d: %d", i, got)
		}
	}
	flood.Wait()
	limit := clientBurst + int(clientRate*time.Since(began).Seconds()) + 1
	if n := strings.Count(api.takeAsked(), "whose is wrong"); n > limit {
		t.Errorf("the API server reviewed %d wrong tokens, want %d at most", n, limit)
	}
}

// In two hours of wrong tokens from many addresses, no scrape fails, also when its decision expires
// and when Prometheus has a new token. What the flood costs the API server is bounded.
func TestScrapesInAFlood(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := &reviewer{}
		a, err := newAuthorizer(&rest.Config{Host: "http://api", Transport: roundTripper{api}},
			scraped.mux(true, false), quiet)
		must(t, err)
		get := func(from, token string) int {
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.RemoteAddr = from
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			a.ServeHTTP(w, r)
			return w.Code
		}
		const scrapes, interval, perInterval = 480, 15 * time.Second, 100
		wrong := 0
		for range 1000 { // One address does not keep out others, also before the first scrape.
			wrong++
			get("10.9.9.9:1", fmt.Sprint("wrong ", wrong))
		}
		for i := range scrapes {
			if got := get("192.0.2.1:1", fmt.Sprint("of prometheus#", i/200)); got != 200 {
				t.Errorf("scrape %d: %d", i, got)
			}
			for j := range perInterval {
				wrong++
				from := fmt.Sprintf("10.0.%d.%d:999", j%2, wrong%250)
				if j%10 == 0 {
					from = fmt.Sprintf("[2001:db8::%x]:999", wrong)
				}
				if got := get(from, fmt.Sprint("wrong ", wrong)); got != 401 && got != 429 {
					t.Fatalf("a wrong token: %d", got)
				}
				if j%10 == 0 {
					<-time.After(interval / (perInterval / 10))
				}
			}
		}
		asked := api.takeAsked()
		if n, limit := strings.Count(asked, "whose is wrong"),
			int(unknownRate*(scrapes*interval).Seconds())+unknownBurst; n > limit || n < limit/2 {
			t.Errorf("the API server reviewed %d wrong tokens, want %d at most, and half of that at least", n, limit)
		}
		if n := strings.Count(asked, "whose is of prometheus"); n > 2*scrapes*int(interval/time.Second)/60+3 {
			t.Errorf("the API server reviewed the right tokens %d times", n)
		}
		if len(a.allowed) > maxDecisions || len(a.refused) > maxDecisions || len(a.clients) > maxClients {
			t.Errorf("%d allowed and %d refused tokens and %d clients are remembered", len(a.allowed), len(a.refused),
				len(a.clients))
		}
	})
}
