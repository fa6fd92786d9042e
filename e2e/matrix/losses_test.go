package matrix

import (
	"image/color"
	"slices"
	"testing"

	"github.com/fanfare-lb/fanfare/e2e/bench/figure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// lossInterval is the length of an interval of the figure, in milliseconds.
const lossInterval = 100

// HasLosses reports whether some cell has the times of its lost requests.
func (all file) HasLosses() bool {
	return slices.ContainsFunc(all.Cells, func(c cellResult) bool { return len(c.Result.LostAt) > 0 })
}

// losses draws the lost requests over time, of all features together, for the disturbances
// with the most.
func (all file) losses() figure.Figure {
	f := figure.Figure{
		Name: "matrix-losses", Title: "Requests lost over time, all features together", Legend: true,
		X: figure.Axis{Label: "begin of the request, seconds from the disturbance"},
		Y: figure.Axis{Label: "part of the requests of 100 ms", Tick: figure.Percent},
	}
	colours := []color.Color{figure.Blue, figure.Vermilion, figure.Green, figure.Purple, figure.Orange}
	most := slices.Clone(disturbances)
	slices.SortStableFunc(most, func(a, b disturbance) int { return len(all.lostAt(b)) - len(all.lostAt(a)) })
	for i, d := range most[:min(len(most), len(colours))] {
		l := figure.Line{Name: shorten(d.name), Color: colours[i], Steps: true, Points: all.lossesOf(d)}
		f.Lines = append(f.Lines, l)
	}
	return f
}

// lostAt returns the times of the lost requests of a disturbance, in all features.
func (all file) lostAt(d disturbance) (at []int) {
	for _, c := range all.Cells {
		if c.Disturbance == d.name {
			at = append(at, c.Result.LostAt...)
		}
	}
	return at
}

// lossesOf returns which part of the requests of each interval was lost.
func (all file) lossesOf(d disturbance) (points []figure.Point) {
	at, cells := all.lostAt(d), 0
	for _, c := range all.Cells {
		if c.Disturbance == d.name {
			cells++
		}
	}
	if len(at) == 0 {
		return nil
	}
	sent := float64(cells*lab.Rate) * lossInterval / 1000
	first, last := floor(slices.Min(at)), floor(slices.Max(at))
	for i := min(first, 0) - 1; i <= last+1; i++ {
		n := 0
		for _, ms := range at {
			if floor(ms) == i {
				n++
			}
		}
		points = append(points, figure.Point{X: float64(i*lossInterval) / 1000, Y: float64(n) / sent})
	}
	return points
}

// floor returns the interval of a time, also before the disturbance.
func floor(ms int) int {
	if ms < 0 {
		return (ms+1)/lossInterval - 1
	}
	return ms / lossInterval
}

// A lost request counts in its interval, as a part of what all cells of the disturbance sent.
func TestLossesOf(t *testing.T) {
	all := file{Cells: []cellResult{
		{Disturbance: "link-flap", Result: result{LostAt: []int{-1, 0, 99}}},
		{Disturbance: "link-flap", Result: result{LostAt: []int{100}}},
		{Disturbance: "bad-object", Result: result{LostAt: []int{100}}},
	}}
	d := disturbances[slices.IndexFunc(disturbances, func(d disturbance) bool { return d.name == "link-flap" })]
	want := []figure.Point{{X: -0.2}, {X: -0.1, Y: 1 / 40.}, {X: 0, Y: 2 / 40.}, {X: 0.1, Y: 1 / 40.}, {X: 0.2}}
	if got := all.lossesOf(d); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if all.losses().Lines[0].Name != "link flap" {
		t.Errorf("%v is not first", all.losses().Lines)
	}
}
