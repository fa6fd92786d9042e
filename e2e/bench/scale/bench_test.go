package scale

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/binary"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// A quick run goes through all phases with both kinds of clients.
func TestBenchmarkMeasuresEverything(t *testing.T) {
	if testing.Short() {
		t.Skip("six control planes take a minute")
	}
	if _, err := kube.Tools(t.Context(), false); err != nil {
		nstest.Missing(t, err.Error())
	}
	o := options{Inputs: measure.Inputs{Binary: filepath.Join(t.TempDir(), "fanfare"), Source: "../../.."}}
	o.quicken()
	if err := binary.Build(t.Context(), o.Binary); err != nil {
		t.Fatal(err)
	}
	r, text, err := o.steps().Once(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(text)
	for _, k := range []kind{speakers, proxies} {
		for _, name := range []string{"start", "idle", "endpoint changes", "API server restarted", "a node dies", "a tenth dies", "Services created", "rolling upgrade"} {
			if p, ok := r.find(r.Large(), k, name); !ok || p.CPU <= 0 || p.Took <= 0 {
				t.Errorf("%s, %s: %+v", k, name, p)
			}
		}
		if p, _ := r.find(r.Large(), k, "start"); p.Count.Lists < 3*int64(r.Large().Nodes) || p.Count.Received == 0 {
			t.Errorf("%s start: %+v", k, p)
		}
	}
	for _, k := range []kind{speakers, proxies} {
		if p := r.extra(r.Large(), k, "endpoint changes"); p.Sent < float64(r.Large().Nodes) {
			t.Errorf("%s receive no changes: %+v", k, p)
		}
	}
	if p, _ := r.find(r.Large(), speakers, "start"); p.Count.Writes < int64(r.Large().Nodes) {
		t.Errorf("speakers write no status and no Lease: %+v", p)
	}
}

func TestReportShowsModel(t *testing.T) {
	o := options{small: 10, large: 20, create: 1000, duration: 30 * time.Second}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	r := report{options: o}
	for _, s := range o.sizes {
		for _, k := range []kind{none, speakers, proxies} {
			cost := map[kind]time.Duration{none: time.Second, speakers: 5 * time.Second, proxies: 3 * time.Second}[k]
			r.Runs = append(r.Runs, run{s, k, []phase{
				{Name: "start", Took: time.Second, Count: Counts{Received: 4e6}},
				{Name: "idle", Took: 10 * time.Second, CPU: cost, Sent: 200, Count: Counts{Writes: 2}},
				{Name: "endpoint changes", Took: 10 * time.Second, CPU: cost, Sent: 4000},
			}})
		}
	}
	text, err := r.render()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"with 10 and with 20 nodes", "### 20 speakers, 200 Services", "| idle | 10.0 s | 0 | 0 | 0 | 2 | 0.0 | 200 | 5.0 s | 0.50 |",
		"| idle: writes a second | 10 | 10 |", "| idle: cores of the API server | 20.0 | 10.0 |", "| start of all: GB | 10 | 10 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	for _, o := range []options{{}, {small: 5, large: 5, create: 1, duration: time.Second}, {small: 5, large: 500, create: 1, duration: time.Second}, {small: 5, large: 6, duration: time.Second}} {
		if o.check() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
