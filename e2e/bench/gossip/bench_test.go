package gossip

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/benchtest"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// A quick run simulates two small clusters, and the report has what the simulation writes.
func TestBenchmarkMeasuresEverything(t *testing.T) {
	o := options{Inputs: benchtest.Inputs(t)}
	o.quicken()
	r, _ := benchtest.Once(t, o.steps())
	if parts := r.Clusters[1].Parts; parts != 2 {
		t.Errorf("the largest cluster was simulated in %d parts, want 2", parts)
	}
	if len(r.Clusters) != 2 || r.Clusters[0].Members != 3 || r.Clusters[1].Members != 5 {
		t.Fatalf("clusters %+v: want 3 and 5 members", r.Clusters)
	}
	for _, c := range r.Clusters {
		if c.Virtual < o.virtual || len(c.All) < 2 || len(c.All) > o.deaths || len(c.Back) != len(c.All) ||
			c.Stalls == 0 || c.Lost == 0 || c.Packets == 0 || c.Bytes == 0 || c.CPU == 0 || c.Loss == 0 ||
			c.Stall == 0 || c.StallInterval == 0 || c.Latency == 0 {
			t.Errorf("a value is missing: %+v", c)
		}
		for i, all := range c.All {
			if c.First[i] == 0 || c.Most[i] < c.First[i] || all < c.Most[i] || c.Back[i] == 0 {
				t.Errorf("%d members, death %d: %+v", c.Members, i, c)
			}
		}
	}
}

func TestReport(t *testing.T) {
	ms := func(a, b time.Duration) measure.Sample {
		return measure.Sample{a * time.Millisecond, b * time.Millisecond}
	}
	r := report{VirtualLimit: time.Hour, ProcessorLimit: 8 * time.Minute, Clusters: []cluster{{
		Members: 1000, Virtual: 6 * time.Minute, Loss: 0.01, Latency: 200 * time.Microsecond,
		Stall: 50 * time.Millisecond, StallInterval: 10 * time.Second, Stalls: 36_000, Lost: 1234, First: ms(300, 500),
		Most: ms(390, 600), All: ms(400, 601), Back: ms(100, 200),
		FalseDeaths: 7, FalseReports: 8, Packets: 49.6, Bytes: 7100, CPU: 12 * time.Minute,
	}}}
	text, err := r.render()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"for 1h0m0s of its own time (`-virtual`), or until that has taken 8m0s", "loses 1 % of all packets",
		"stalls for 50 ms, every 10s", "| 1,000 | 2 | 0.30 / 0.50 / 0.50 s | 0.39 / 0.60 / 0.60 s | 0.40 / 0.60 " +
			"/ 0.60 s | 1 of 2 | " +
			"0.10 / 0.20 / 0.20 s |",
		"| 1,000 | 6m0s | 100.0 | 36,000 | 1,234 | 8 | **7** |",
		"| 1,000 | 50 | 7,100 | 0.2 % |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Two parts count as one cluster that runs for as long as both.
func TestMerge(t *testing.T) {
	a := cluster{
		Members: 10, Virtual: time.Minute, Seed: 1, Stalls: 1, Lost: 2, First: measure.Sample{1},
		Most: measure.Sample{2}, All: measure.Sample{3}, Back: measure.Sample{4}, FalseReports: 1, Packets: 10,
		Bytes: 1000, CPU: time.Second,
	}
	b := cluster{
		Members: 10, Virtual: 3 * time.Minute, Seed: 2, Stalls: 10, Lost: 20, First: measure.Sample{5},
		Most: measure.Sample{6}, All: measure.Sample{7}, Back: measure.Sample{8}, FalseDeaths: 1, Packets: 50,
		Bytes: 5000, CPU: 2 * time.Second,
	}
	want := cluster{
		Members: 10, Virtual: 4 * time.Minute, Seed: 1, Parts: 2, Stalls: 11, Lost: 22, First: measure.Sample{1, 5},
		Most: measure.Sample{2, 6}, All: measure.Sample{3, 7}, Back: measure.Sample{4, 8}, FalseDeaths: 1,
		FalseReports: 1, Packets: 40, Bytes: 4000, CPU: 3 * time.Second,
	}
	if got := merge([]cluster{a, b}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	good := options{members: 10, parts: 2, deaths: 2, virtual: time.Minute, processor: time.Minute}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for _, spoil := range []func(*options){
		func(o *options) {
			*o = options{}
		}, func(o *options) {
			o.members = 3
		}, func(o *options) { o.members = 5000 }, func(o *options) { o.processor = 0 },
		func(o *options) {
			o.parts = 0
		}, func(o *options) { o.parts, o.deaths = 65, 65 }, func(o *options) { o.deaths = 1 },
	} {
		o := good
		if spoil(&o); o.check() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
