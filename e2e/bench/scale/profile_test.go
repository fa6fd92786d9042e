package scale

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

const traces = `File: kube-apiserver
Type: cpu
Duration: 12s, Total samples = 1.19s ( 9.91%)
-----------+-------------------------------------------------------
      10ms   runtime.mallocgc
             k8s.io/apiserver/pkg/endpoints/handlers.(*watchEncoder).doEncode
             k8s.io/apiserver/pkg/endpoints/handlers.ListResource.func1
             net/http.(*conn).serve
-----------+-------------------------------------------------------
     1.20s   k8s.io/apiserver/pkg/storage/cacher.(*Cacher).dispatchEvent
             k8s.io/apiserver/pkg/storage/cacher.(*Cacher).dispatchEvents
-----------+-------------------------------------------------------
      20ms   k8s.io/apiserver/pkg/storage/etcd3.(*store).GuaranteedUpdate
             k8s.io/apiserver/pkg/endpoints/handlers.(*patcher).patchResource
-----------+-------------------------------------------------------
      30ms   time.Now
             main.main
-----------+-------------------------------------------------------
`

func TestProfileParts(t *testing.T) {
	p := &profile{Lasted: 10 * time.Second, Parts: map[string]time.Duration{}}
	if err := p.add([]byte(traces)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"sends events and streamed lists to watches":      "0.1 %",
		"gets events from etcd and hands them to watches": "12.0 %", "writes": "0.2 %", "the rest": "0.3 %",
		"answers lists": "0.0 %",
	} {
		if got := p.percent(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if err := p.add([]byte("\n-----------+---\n  x   a\n")); err == nil {
		t.Error("a CPU time that is none is accepted")
	}
}

// The old process is not asked, and the new one again while it refuses. client-go itself would obey Retry-After.
func TestProfileAfterRestart(t *testing.T) {
	var made bytes.Buffer
	if err := pprof.StartCPUProfile(&made); err != nil {
		t.Fatal(err)
	}
	pprof.StopCPUProfile()
	ended, alive, requests := make(chan struct{}), atomic.Bool{}, atomic.Int64{}
	alive.Store(true)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Path + "?seconds=" + r.URL.Query().Get("seconds"); got != "/debug/pprof/profile?seconds=3" ||
			alive.Load() {
			t.Errorf("request for %s, old process alive: %t", got, alive.Load())
		}
		if requests.Add(1) <= 3 {
			w.Header().Set("Retry-After", "3600")
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(made.Bytes()) // the client reports an error
	}))
	defer s.Close()
	b := &bench{dir: t.TempDir()}
	var err error
	if b.core, _, err = measure.Clients(&rest.Config{Host: s.URL, QPS: -1}); err != nil {
		t.Fatal(err)
	}
	go func() {
		alive.Store(false)
		close(ended)
	}()
	p, err := b.profileAfter(ended, 3*time.Second)(t.Context())
	if err != nil || p.Lasted != 3*time.Second || requests.Load() != 4 {
		t.Errorf("%+v after %d requests, %v; want one of 3 s after 4", p, requests.Load(), err)
	}
}

// The wait for a restart ends with its context, as when the restart fails.
func TestProfileWithoutRestart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p, err := new(bench).profileAfter(make(chan struct{}), time.Second)(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", p, err)
	}
}

// The page has the profiles that both kinds of clients have, and none of results without any.
func TestReportOfProfiles(t *testing.T) {
	o := options{small: 3, large: 5, create: 1, duration: time.Second, idle: time.Second}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	r := o.newReport()
	is := func(cpu time.Duration) *profile {
		return &profile{10 * time.Second, map[string]time.Duration{"writes": cpu}}
	}
	for kind, cpu := range map[kind]time.Duration{speakers: time.Second, proxies: 2 * time.Second} {
		r.Runs = append(r.Runs, run{r.Large, kind,
			[]phase{{Name: start, Profile: is(cpu)}, {Name: idle}, {Name: restart, Profile: is(cpu / 2)},
				{Name: created, Profile: is(2 * cpu)}}})
	}
	text, err := r.render()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| CPU time of kube-apiserver | start | API server restarted | Services created |\n",
		"| writes | 10.0 % / 20.0 % | 5.0 % / 10.0 % | 20.0 % / 40.0 % |\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for i := range r.Runs {
		for j := range r.Runs[i].Phases {
			r.Runs[i].Phases[j].Profile = nil
		}
	}
	if text, err = r.render(); err != nil || strings.Contains(text, "CPU time of kube-apiserver") {
		t.Errorf("without profiles: %v\n%s", err, text)
	}
}
