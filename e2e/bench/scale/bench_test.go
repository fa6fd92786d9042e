package scale

import (
	"fmt"
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
			if p, ok := r.find(r.Large, k, name); !ok || p.CPU <= 0 || p.Took <= 0 {
				t.Errorf("%s, %s: %+v", k, name, p)
			}
		}
		if p, _ := r.find(r.Large, k, "start"); p.Count.Lists < 3*int64(r.Large.Nodes) || p.Count.Received == 0 {
			t.Errorf("%s start: %+v", k, p)
		}
	}
	for _, k := range []kind{speakers, proxies} {
		without, _ := r.find(r.Large, none, "endpoint changes")
		if p, _ := r.find(r.Large, k, "endpoint changes"); p.Sent-without.Sent < float64(r.Large.Nodes) {
			t.Errorf("%s receive no changes: %+v", k, p)
		}
	}
	if p, _ := r.find(r.Large, speakers, "start"); p.Count.Writes < int64(r.Large.Nodes) {
		t.Errorf("speakers write no status and no Lease: %+v", p)
	}
}

func TestReport(t *testing.T) {
	o := options{small: 10, large: 20, create: 1000, duration: 30 * time.Second}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		watches int64
		busy    bool
	}{{0, false}, {3, true}} {
		r := o.newReport()
		r.Runs = []run{{o.sizes[1], speakers, []phase{
			{Name: "idle", Took: 10 * time.Second, CPU: 5 * time.Second, Sent: 200, Count: Counts{Watches: tt.watches, Writes: 2}},
		}}}
		text, err := r.render()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"with 10 and with 20 nodes", "### 20 speakers, 200 Services",
			fmt.Sprintf("| idle | 10.0 s | 0 | 0 | %d | 2 | 0.0 | 200 | 5.0 s | 0.50 |", tt.watches),
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
		if got := strings.Contains(text, "they considered one another dead"); got != tt.busy {
			t.Errorf("%d watches while idle: the report says that the machine was too busy: %t, want %t", tt.watches, got, tt.busy)
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
