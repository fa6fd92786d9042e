package kube

import (
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/benchtest"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A quick run measures everything, and each measurement leaves a state in which the next one
// works.
func TestBenchmarkMeasuresEverything(t *testing.T) {
	if testing.Short() {
		t.Skip("a control plane takes many seconds") // only in make test-short
	}
	if err := lab.Missing("/usr/sbin/bird"); err != nil {
		nstest.Missing(t, err.Error())
	}
	if _, err := kube.Tools(t.Context(), false); err != nil {
		nstest.Missing(t, err.Error())
	}
	o := options{Inputs: benchtest.Inputs(t)}
	o.quicken()
	r, text := benchtest.Once(t, o.steps())
	if len(r.Results) != len(o.sizes) {
		t.Fatalf("%d results, want %d", len(r.Results), len(o.sizes))
	}
	for _, x := range r.Results {
		for name, c := range map[string]created{"FRR": x.Created, "BIRD": x.BIRD, "busy": x.Busy.Created} {
			checkCreated(t, name, c, o.repeats)
		}
		// The speakers and kube-proxies of the other two nodes are measured too.
		if extra := len(x.Busy.CPU) - len(x.Usage); extra != 4 {
			t.Errorf("%d more processes on busy nodes: %+v", extra, x.Busy.CPU)
		}
	}
	if strings.Contains(text, "–") {
		t.Errorf("something was not measured:\n%s", text)
	}
}

// checkCreated checks that every time was measured, in the order of its causes.
func checkCreated(t *testing.T, name string, c created, repeats int) {
	t.Helper()
	for _, s := range []measure.Sample{c.Accepted, c.Address, c.Rules, c.Update, c.Route, c.Answer, c.FRR, c.WithoutFRR,
		c.Proxy} {
		if len(s) != repeats || s.Quantile(0) <= 0 {
			t.Errorf("%s: %+v", name, c)
			return
		}
	}
	for i := range repeats {
		if c.Update[i] > c.Route[i] || c.Route[i] > c.Answer[i] {
			t.Errorf("%s: UPDATE after %s, route after %s, answer after %s", name, c.Update[i], c.Route[i], c.Answer[i])
		}
	}
}

// A route to several nodes is one route.
func TestHostRoutes(t *testing.T) {
	out := "198.18.0.0/16 nhid 7 via 198.51.100.11 dev br0 proto bgp metric 20 \n" +
		"198.18.0.1 nhid 8 via 198.51.100.11 dev br0 proto bgp metric 20 \n" +
		"198.18.0.2 nhid 9 proto bgp metric 20 \\\tnexthop via 198.51.100.12 dev br0 weight 1 \\\tnexthop via " +
		"198.51.100.11 dev br0 weight 1 \n"
	if routes, hops := hostRoutes(out); routes != 2 || hops != 3 {
		t.Errorf("%d routes, %d next hops: want 2 and 3", routes, hops)
	}
}

// Results that were measured before there was the measurement on busy nodes have a page
// without it.
func TestReportWithoutBusyNodes(t *testing.T) {
	r := report{Repeats: 30, Results: []result{{Services: 10, Fill: fill{Services: 10}}}}
	text, err := r.render()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "busy") {
		t.Errorf("the page is about busy nodes:\n%s", text)
	}
}

// Each table has a column for each result, and no empty cell.
func TestReportShowsNumbers(t *testing.T) {
	s := measure.Sample{time.Millisecond, 3 * time.Millisecond, 2 * time.Millisecond}
	c := change{s, s, s, s}
	used := []measure.Usage{{Name: "fanfare speaker", RSS: 80e6, Peak: 90e6}}
	cpu := []measure.Share{{Name: "fanfare speaker", Core: 0.015}}
	spent := []measure.Spent{{Name: "fanfare speaker", CPU: 20 * time.Second}}
	news := created{s, s, s, s, s, s, s, s, s}
	one := result{
		Services: 10, Created: news, BIRD: news, Aggregated: aggregated{s, s}, Eager: moved{c, c, cpu},
		Default: moved{c, c, cpu}, Fill: fill{10, time.Second, 2 * time.Second, time.Second, time.Second, s, spent},
		Idle: cpu, Usage: used, Busy: busy{news, cpu},
	}
	many := one
	many.Services, many.Fill.Services = 5000, 4990
	text, err := report{Repeats: 30, Results: []result{one, many}}.render()
	if err != nil {
		t.Fatal(err)
	}
	columns := 0
	for i, l := range strings.Split(text, "\n") {
		switch n := strings.Count(l, "|"); {
		case n == 0:
			columns = 0
		case columns == 0:
			columns = n
		case n != columns:
			t.Errorf("line %d has %d columns, want %d: %s", i+1, n-1, columns-1, l)
		}
	}
	for _, want := range []string{
		"| until | 10 Services | 5,000 Services |",
		"| **in the kernel of Fanfare's node** | 2.0 ms / 3.0 ms | 2.0 ms / 3.0 ms |",
		"a client behind FRR has the first answer** | 2.0 ms / 3.0 ms | 2.0 ms / 3.0 ms |",
		"| until, with three busy nodes | 10 Services | 5,000 Services |",
		"| fanfare speaker | 80 / 90 MB | 80 / 90 MB |", "| fanfare speaker | 1.5 % | 1.5 % |",
		"| new Services | 10 | 4,990 |", "| fanfare speaker | 20.0 s, 2.00 s each | 20.0 s, 4.0 ms each |",
		"1.00 s, 4990 a second",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, f := range (report{Results: []result{one, many}}).figures() {
		if _, err := f.SVG(); err != nil || !strings.Contains(text, "]("+f.Name+".svg)") {
			t.Errorf("%s: %v; the page must show it", f.Name, err)
		}
		if len(f.Lines) == 0 || len(f.Lines[0].Points) < 2 {
			t.Errorf("%s: %+v", f.Name, f.Lines)
		}
	}
	if strings.Contains(text, "–") {
		t.Errorf("something was not measured:\n%s", text)
	}
}
