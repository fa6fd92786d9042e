package l2

import (
	"image/color"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/figure"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// colours are those of the lines of a figure, in their order.
var colours = []color.Color{figure.Blue, figure.Vermilion, figure.Green, figure.Purple}

// figures draws the distribution of first answers, and the losses over time of each failure.
func (r report) figures() []figure.Figure {
	share := figure.Axis{Label: "part of all events", Max: 1, Tick: figure.Percent}
	first := figure.Figure{
		Name: "l2-answers", Title: "A Service is created: until the host has an answer", Legend: true,
		X: figure.Axis{Label: "time from the creation", Log: true, Tick: figure.Seconds}, Y: share,
	}
	for i, c := range r.Created {
		begins := figure.Distribution(c.Family+", the host begins then", colours[i%4], c.Begins)
		waits := figure.Distribution(c.Family+", it has been trying", colours[i%4], c.Waits)
		waits.Dashed = true
		first.Lines = append(first.Lines, begins, waits)
	}
	again := figure.Figure{
		Name: "l2-failover", Title: "The announcing node fails: until another one answers", Legend: true,
		X: figure.Axis{Label: "time from the failure", Log: true, Tick: figure.Seconds}, Y: share,
	}
	for i, w := range r.Results {
		again.Lines = append(again.Lines, figure.Distribution(w.Name, colours[i%4], sum(w.Moved, w.Answered)))
	}
	return []figure.Figure{first, again, r.losses()}
}

// sum adds the durations of the same event.
func sum(a, b measure.Sample) (s measure.Sample) {
	for i := range min(len(a), len(b)) {
		s = append(s, a[i]+b[i])
	}
	return s
}

// losses draws which part of the requests that began at a time was lost or late.
func (r report) losses() figure.Figure {
	f := figure.Figure{
		Name: "l2-losses", Title: "The announcing node fails: requests lost or late", Legend: true,
		X: figure.Axis{Label: "begin of the request, seconds from the failure", Ticks: []float64{0, 1, 2, 3, 4}},
		Y: figure.Axis{Label: "part of the requests of 50 ms", Max: 1, Tick: figure.Percent},
	}
	f.X.Min, f.X.Max = -before.Seconds(), (intervals*interval - before).Seconds()
	for i, w := range r.Results {
		l := figure.Line{Name: w.Name, Color: colours[i%4], Steps: true}
		for n := range w.Losses.Sent {
			at := time.Duration(n)*w.Losses.Interval - before
			l.Points = append(l.Points, figure.Point{X: at.Seconds(), Y: w.Losses.Affected(n)})
		}
		f.Lines = append(f.Lines, l)
	}
	return f
}
