package kube

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// A client waits as long for an answer as for the start of an API server: both may get little of a busy
// machine.
func TestClientIsPatient(t *testing.T) {
	var limit atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit.Store(r.URL.Query().Get("timeout"))
		http.Error(w, "{}", http.StatusServiceUnavailable)
	}))
	defer s.Close()
	c, err := NewClient(&rest.Config{Host: s.URL})
	must(t, err)
	if c.ready(t.Context()) == nil {
		t.Error("a server that is unavailable counts as ready")
	}
	text, _ := limit.Load().(string)
	if got, err := time.ParseDuration(text); err != nil || got < readyLimit {
		t.Errorf("a request has the timeout %q, want at least %s", text, readyLimit)
	}
}
