package kube

import (
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// Each table has a column for each result, and no empty cell.
func TestReportShowsNumbers(t *testing.T) {
	s := measure.Sample{time.Millisecond, 3 * time.Millisecond, 2 * time.Millisecond}
	c := change{s, s, s, s}
	used := []measure.Usage{{Name: "fanfare speaker", RSS: 80e6, Peak: 90e6}}
	cpu := []measure.Share{{Name: "fanfare speaker", Core: 0.015}}
	spent := []measure.Spent{{Name: "fanfare speaker", CPU: 20 * time.Second}}
	news := created{s, s, s, s, s, s, s, s, s}
	one := result{
		Services: 10, Created: news, BIRD: news, Aggregated: aggregated{s, s}, Eager: moved{c, c, cpu}, Default: moved{c, c, cpu},
		Fill: fill{10, time.Second, 2 * time.Second, time.Second, time.Second, s, spent}, Idle: cpu, Usage: used,
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
		"| until | 10 Services | 5,000 Services |", "| **in the kernel of Fanfare's node** | 2.0 ms / 3.0 ms | 2.0 ms / 3.0 ms |",
		"| fanfare speaker | 80 / 90 MB | 80 / 90 MB |", "| fanfare speaker | 1.5 % | 1.5 % |", "| new Services | 10 | 4,990 |", "| fanfare speaker | 20.0 s, 2.00 s each | 20.0 s, 4.0 ms each |", "1.00 s, 4990 a second",
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
