package speaker

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// The Reporter applies the object, once for a change and again after a failure.
func TestReporter(t *testing.T) {
	var fail atomic.Bool
	fail.Store(true)
	written := make(chan v1alpha1.SpeakerStatus, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if want := "/apis/fanfare.io/v1alpha1/speakerstatuses/n1"; r.Method != http.MethodPatch || r.URL.Path != want ||
			r.Header.Get("Content-Type") != "application/apply-patch+yaml" {
			t.Errorf("%s %s with %s", r.Method, r.URL, r.Header.Get("Content-Type"))
		}
		body, _ := io.ReadAll(r.Body)
		if fail.CompareAndSwap(true, false) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var o v1alpha1.SpeakerStatus
		if err := json.Unmarshal(body, &o); err != nil {
			t.Error(err)
		}
		written <- o
		w.Header().Set("Content-Type", "application/json")
		w.Write(body)
	}))
	defer server.Close()
	r, err := NewReporter(&rest.Config{Host: server.URL}, "n1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.write(t.Context(), v1alpha1.SpeakerReport{}); err == nil {
		t.Error("no error from a server that is away")
	}
	go r.run(t.Context(), reportedStatus)
	r.note()
	select {
	case o := <-written:
		if o.Name != "n1" || o.Status.Established != "1/2" || o.Status.Changed.IsZero() {
			t.Errorf("wrote %+v", o)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nothing written")
	}
}

// reporterTo is one whose requests go to an API server that is not on a network.
func reporterTo(t *testing.T, api http.RoundTripper) *Reporter {
	t.Helper()
	r, err := NewReporter(&rest.Config{Host: "http://api", Transport: api}, "n1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Without an API server there is nobody to report to.
func TestNoReporter(t *testing.T) {
	var r *Reporter
	r.note()
	r.run(t.Context(), reportedStatus)
}
