package scale

import (
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/benchtest"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A quick run goes through all phases with both kinds of clients, in one size.
func TestBenchmarkMeasuresEverything(t *testing.T) {
	if testing.Short() {
		t.Skip("two control planes take a minute") // only in make test-short
	}
	tools, err := kube.Tools(t.Context(), false)
	if err != nil {
		nstest.Missing(t, err.Error())
	}
	o := options{Inputs: benchtest.Inputs(t)}
	o.quicken()
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	r := o.newReport()
	for _, k := range []kind{proxies, speakers} {
		phases, err := measureOne(t.Context(), o, tools, r.Large, k)
		if err != nil {
			t.Fatalf("%s: %v", k, err)
		}
		r.Runs = append(r.Runs, run{r.Large, k, phases})
	}
	for _, k := range []kind{speakers, proxies} {
		for _, name := range []string{start, idle, endpointChanges, restart, nodeDies, tenthDies, created, upgrade} {
			if p, ok := r.find(r.Large, k, name); !ok || p.CPU <= 0 || p.Took <= 0 {
				t.Errorf("%s, %s: %+v", k, name, p)
			}
		}
		// A thread that runs for less than 10 ms may have no sample, and in one quick phase all threads may: so samples
		// are asked of all phases together.
		samples := 0
		for _, name := range []string{start, endpointChanges, restart, nodeDies, tenthDies, created, upgrade} {
			p, _ := r.find(r.Large, k, name)
			if p.Profile == nil {
				t.Errorf("%s, %s: no profile", k, name)
				continue
			}
			samples += len(p.Profile.Parts)
		}
		if samples == 0 {
			t.Errorf("%s: no profile has a sample", k)
		}
		if p, _ := r.find(r.Large, k, start); p.Count.Lists < 3*int64(r.Large.Nodes) || p.Count.Received == 0 {
			t.Errorf("%s start: %+v", k, p)
		}
	}
	for _, k := range []kind{speakers, proxies} {
		// In a second, at most changesPerSecond and a few Nodes' heartbeats.
		if p, _ := r.find(r.Large, k, endpointChanges); p.Sent < float64(changesPerSecond/2*r.Large.Nodes) {
			t.Errorf("%s receive few changes: %+v", k, p)
		}
	}
	if p, _ := r.find(r.Large, speakers, start); p.Count.Writes < int64(r.Large.Nodes) {
		t.Errorf("speakers write no status and no Lease: %+v", p)
	}
}

func TestReport(t *testing.T) {
	o := options{small: 50, large: 200, create: 1000, duration: 30 * time.Second, idle: time.Minute}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		deaths  int64
		cpu     time.Duration // of the API server, with kube-proxies
		busy    bool
		verdict string
	}{
		{0, 5 * time.Second, false, "In no phase do speakers cost the API server more CPU time"},
		{3, 4 * time.Second, true, "Speakers cost the API server more CPU time than kube-proxies in " +
			"these phases: *idle*."},
	} {
		r := o.newReport()
		for i, s := range o.sizes {
			r.Runs = append(r.Runs,
				run{s, speakers, []phase{{Name: idle, Took: 10 * time.Second, CPU: 5 * time.Second, Sent: 200,
					Count: Counts{FalseDeaths: tt.deaths, Writes: int64(10 + 30*i), Received: 3e6}}}},
				run{s, proxies, []phase{{Name: idle, Took: 10 * time.Second, CPU: tt.cpu, Clients: time.Second}}})
		}
		text, err := r.render()
		if err != nil {
			t.Fatal(err)
		}
		further, err := r.further()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"## 200 speakers, 2,000 Services",
			"| idle | 10.0 s | 0 | 0 | 0 | 40 | 3.0 | 200 | 5.0 s | 0.0 s |"} {
			if phases := string(further[0].Content); !strings.Contains(phases, want) {
				t.Errorf("no %q in\n%s", want, phases)
			}
		}
		for _, want := range []string{
			"with 50 and with 200 nodes", tt.verdict, "a speaker writes 0.020 times a second",
			// 50 and 200 nodes have as many events, so that each of 1,000 has those of one of 200.
			"| idle | " + number(5*40) + " / 0.0 | 1,000 / 0.0 | 15 / 0.0 | 25 ± 8.0 / ",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
		if got := strings.Contains(text, "because the machine was too busy, in *idle* with 50 nodes (3 times), "+
			"*idle* with 200 nodes (3 times)."); got != tt.busy {
			t.Errorf("%d false deaths while idle: the report says that the machine was too busy: %t, want %t\n%s",
				tt.deaths, got, tt.busy, text)
		}
	}
}

func TestNumber(t *testing.T) {
	for x, want := range map[float64]string{0: "0.0", 3.14: "3.1", 99.6: "100", 1000: "1,000", 1234567: "1,230,000"} {
		if got := number(x); got != want {
			t.Errorf("%g is %s, want %s", x, got, want)
		}
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	good := options{small: 5, large: 6, create: 1, duration: time.Second, idle: time.Second}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for _, spoil := range []func(*options){
		func(o *options) {
			*o = options{}
		}, func(o *options) {
			o.large = 5
		}, func(o *options) { o.large = 500 }, func(o *options) { o.create = 0 }, func(o *options) { o.idle = 0 },
	} {
		o := good
		if spoil(&o); o.check() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
