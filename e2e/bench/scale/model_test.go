package scale

import (
	"math"
	"testing"
	"time"
)

// What follows the model's own form is predicted exactly.
func TestPredict(t *testing.T) {
	constant := func(int) float64 { return 7 }
	for _, tt := range []struct {
		name       string
		base, cost func(n int) float64
		want       float64 // at 1,000 nodes
	}{
		{"a cost of each node", constant, func(n int) float64 { return 7 + 3*float64(n) }, 3007},
		{"each node receives all objects", constant, func(n int) float64 { return 7 + 3*float64(n) + 2*float64(n*n) },
			2_003_007},
		{"the base grows", func(n int) float64 {
			return 5 * float64(n)
		}, func(n int) float64 { return 6 * float64(n) }, 6000},
		{"no clients are needed", constant, constant, 7},
		{"a cost that does not grow counts for each node", constant, func(int) float64 { return 27 }, 7 + 20*1000/200},
		{"less than without clients is noise", constant, func(int) float64 { return 6 }, 7},
	} {
		at := func(f func(int) float64) [2]load {
			return [2]load{{f(50), f(50), f(50), f(50), f(50)}, {f(200), f(200), f(200), f(200), f(200)}}
		}
		got := predict(1000, 50, 200, at(tt.base), at(tt.cost))
		for _, g := range []float64{got.Requests, got.Writes, got.Events, got.MB, got.CPU} {
			if math.Abs(g-tt.want) > tt.want/1e9 {
				t.Errorf("%s: %g, want %g", tt.name, g, tt.want)
			}
		}
	}
}

// The model of a report takes the phases without clients as the base where they were measured.
func TestModel(t *testing.T) {
	r := report{Small: size{50, 500}, Large: size{200, 2000}}
	for _, s := range []size{r.Small, r.Large} {
		r.Runs = append(r.Runs,
			run{s, none, []phase{{Name: idle, CPU: 4 * time.Second}}},
			run{s, speakers, []phase{{Name: start, Count: Counts{Lists: int64(8 * s.Nodes)}},
				{Name: idle, CPU: 4*time.Second + time.Duration(s.Nodes)*10*time.Millisecond}}},
			run{s, proxies, []phase{{Name: start, Count: Counts{Lists: int64(4 * s.Nodes)}}}},
		)
	}
	got := r.Model()
	if len(got) != 1 || got[0].Phase != start || math.Round(got[0].Speakers.Requests) != 8000 ||
		math.Round(got[0].Proxies.Requests) != 4000 {
		t.Errorf("%+v: want %q with 8000 and 4000 requests, and no phase that kube-proxies lack", got, start)
	}
	if l, ok := r.predicted(speakers, idle); !ok || math.Abs(l.CPU-14) > 1e-9 {
		t.Errorf("%s: %+v, %t: want 14 s of CPU", idle, l, ok)
	}
	if got := r.Magnified(); got != 32 {
		t.Errorf("an error counts %g times, want 32", got)
	}
	if got := r.margin(speakers, idle); math.Abs(got-32*0.05*6) > 1e-9 {
		t.Errorf("6 s of CPU time with 200 nodes have a margin of %g s, want 5 %% of them 32 times", got)
	}
	r.Small = size{101, 1010}
	for i := range 3 {
		r.Runs[i].Size = r.Small
	}
	if got := r.Model(); got != nil {
		t.Errorf("101 and 200 nodes predict %+v", got)
	}
}
