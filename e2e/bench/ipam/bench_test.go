package ipam

import (
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/benchtest"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A quick run measures everything.
func TestBenchmarkMeasuresEverything(t *testing.T) {
	if testing.Short() {
		t.Skip("a control plane takes many seconds")
	}
	if _, err := kube.Tools(t.Context(), false); err != nil {
		nstest.Missing(t, err.Error())
	}
	o := options{Inputs: benchtest.Inputs(t)}
	o.quicken()
	r, _ := benchtest.Once(t, o.steps())
	if r.Created <= 0 || r.First <= 0 || r.Last < r.First || r.Usage.RSS == 0 ||
		len(r.Again) != o.restarts || len(r.New) != o.changes || len(r.Freed) != o.changes {
		t.Errorf("%+v", r)
	}
}

func TestReportShowsNumbers(t *testing.T) {
	ms := func(n int) measure.Sample { return measure.Sample{time.Duration(n) * time.Millisecond} }
	r := report{
		Services: 1000, Restarts: 5, Changes: 20, Created: 10 * time.Second, First: 300 * time.Millisecond,
		Last:  4 * time.Second,
		Usage: measure.Usage{RSS: 60e6, Peak: 70e6, CPU: 2 * time.Second}, Again: ms(11), New: ms(12), Freed: ms(13),
	}
	text, err := r.render()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"1,000 Services of type", "10.0 s, 100 a second", "300 ms", "**4.0 s**, 250 a second", "2.0 s", "60 MB, 70 MB",
		"11 ms / 11 ms", "12 ms / 12 ms", "13 ms / 13 ms",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	for _, o := range []options{{services: 0, restarts: 1, changes: 1},
		{services: maxServices + 1, restarts: 1, changes: 1}, {services: 1}} {
		if o.check() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
