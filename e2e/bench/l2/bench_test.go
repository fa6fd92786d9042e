package l2

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/benchtest"
	"github.com/fanfare-lb/fanfare/e2e/bench/figure"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A quick run measures everything.
func TestBenchmarkMeasuresEverything(t *testing.T) {
	if testing.Short() {
		t.Skip("a laboratory takes some seconds")
	}
	if err := lab.Missing(); err != nil {
		nstest.Missing(t, err.Error())
	}
	o := options{Inputs: benchtest.Inputs(t)}
	o.quicken()
	r, _ := benchtest.Once(t, o.steps())
	for _, x := range r.Created {
		if len(x.Begins) != o.runs || len(x.Waits) != o.runs || x.Begins[0] <= 0 || x.Waits[0] <= 0 {
			t.Errorf("%+v", x)
		}
	}
	if len(r.Created) != 2 {
		t.Errorf("%+v", r.Created)
	}
	for i, w := range failureKinds {
		x := r.Results[i]
		if len(x.Moved) != o.runs || len(x.Back) != o.runs || len(x.Answered) != o.runs ||
			w.silent != (len(x.Noticed) == o.runs) || x.Sent == 0 || total(x.Losses.Sent) == 0 {
			t.Errorf("%s: %+v", w.name, x)
		}
	}
	if p := r.Pods; len(p.Noticed) != o.runs || len(p.Hurt) != o.runs || len(p.Back) != o.runs || p.Back[0] <= 0 ||
		p.Sent == 0 {
		t.Errorf("%+v", p)
	}
	if total(r.Rest.Spread) != o.addresses || r.Rest.RSS == 0 || r.Rest.PacketsWith == 0 {
		t.Errorf("%+v", r.Rest)
	}
	if _, err := os.Stat("/run/netns/ff-benchl2-n1"); err == nil {
		t.Error("namespaces were not removed")
	}
}

func TestReportShowsNumbers(t *testing.T) {
	ms := func(list ...int) (s measure.Sample) {
		for _, n := range list {
			s = append(s, time.Duration(n)*time.Millisecond)
		}
		return s
	}
	r := report{Runs: 3, Addresses: 1000, Created: []created{{"IPv4", ms(31, 33, 32), ms(41, 42, 43)}},
		Results: []result{
			{Name: "power", Silent: true, Noticed: ms(100, 300, 200), Moved: ms(110, 310, 210),
				Answered: ms(10, 20, 30), Back: ms(400, 500, 600), Sent: 3000, Lost: 2, Cut: 1, Late: 7},
			{Name: "stopped", Moved: ms(1, 2, 3), Answered: ms(4), Back: ms(5), Sent: 10},
			{Name: killed, Sent: 4000, Lost: 1}, {Name: frozen, Sent: 1234, Late: 2},
		}, Pods: podLoss{Noticed: ms(300), Hurt: ms(301), Back: ms(900), Sent: 1500, Lost: 3, Late: 40},
		Rest: rest{
			Without: 0.01, With: 0.012, PacketsWithout: 99.6, PacketsWith: 100.2, RSS: 5e7,
			Spread: []int{300, 350, 350},
		}}
	text, err := r.render()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| IPv4 | 31 ms / 32 ms / 33 ms | 41 ms / 42 ms / 43 ms |\n",
		"| power | 100 ms / 200 ms / 300 ms | 110 ms / 210 ms / 310 ms | 10 ms / 20 ms / 30 ms | 400 ms / 500 ms / " +
			"600 ms | 2 of 3,000 | 1 | 7 |\n",
		"| stopped | – | 1.0 ms / 2.0 ms / 3.0 ms | 4.0 ms / 4.0 ms / 4.0 ms |",
		"| 300 ms / 300 ms / 300 ms | 301 ms / 301 ms / 301 ms | 900 ms / 900 ms / 900 ms | 3 of 1,500 | 40 |\n",
		"| part of a core, all speakers | 1.0 % | 1.2 % |", "| 100 | 100 |", "holds 50 MB", "300, 350, 350",
		"continues to forward: requests lost,\nof all: 1 of 5,234; answered late: 2.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// The figures have a line for each kind of event that was measured, and the page shows them.
func TestFigures(t *testing.T) {
	s := measure.Sample{time.Millisecond, 2 * time.Millisecond}
	losses := lab.Timeline{Interval: interval, Sent: []int{0, 10, 10}, Lost: []int{0, 1, 0}, Late: []int{0, 4, 0}}
	r := report{
		Created: []created{{"IPv4", s, s}}, Results: []result{{Name: "power", Moved: s, Answered: s, Losses: losses},
			{Name: "stopped", Moved: s, Answered: s, Losses: losses}},
	}
	all := r.figures()
	for _, f := range all {
		svg, err := f.SVG()
		if err != nil || !strings.Contains(document, "]("+f.Name+".svg)") {
			t.Errorf("%s: %v; the page must show it", f.Name, err)
		}
		for _, l := range f.Lines {
			if !strings.Contains(string(svg), ">"+l.Name+"<") {
				t.Errorf("%s has no line %s", f.Name, l.Name)
			}
		}
	}
	if got, want := all[1].Lines[0].Points[1].X, 0.002; got != want {
		t.Errorf("half of the failures: the first answer after %g s, want %g", got, want)
	}
	if p := all[2].Lines[0].Points[1]; p != (figure.Point{X: -0.45, Y: 0.5}) {
		t.Errorf("half of the second interval is affected: %+v", p)
	}
}
