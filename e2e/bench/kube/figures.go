package kube

import (
	"image/color"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/figure"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// seconds is a logarithmic axis of durations.
func seconds(label string) figure.Axis {
	return figure.Axis{Label: label, Log: true, Tick: figure.Seconds}
}

// services is the logarithmic axis of the numbers of Services, with a tick at each.
func (r report) services() figure.Axis {
	a := figure.Axis{Label: "Services", Log: true, Tick: func(v float64) string { return measure.Thousands(int(v)) }}
	for _, res := range r.Results {
		a.Ticks = append(a.Ticks, float64(res.Services))
	}
	return a
}

// figures draws cost against the number of Services, and the distribution of first answers.
func (r report) figures() []figure.Figure {
	if len(r.Results) == 0 {
		return nil
	}
	return []figure.Figure{
		{
			Name: "kube-change", Title: "An endpoint changes: until it is in the node's kernel",
			X: r.services(), Y: seconds("median (bar: p95)"),
			Lines: []figure.Line{
				r.against("Fanfare", figure.Blue, func(r result) measure.Sample {
					return both(r.Eager.Calm.Rules, r.Default.Calm.Rules)
				}),
				r.against("kube-proxy", figure.Vermilion, func(r result) measure.Sample { return r.Eager.Calm.Proxy }),
			},
		},
		{
			Name: "kube-create", Title: "A Service is created: until it can be reached",
			X: r.services(), Y: seconds("median (bar: p95)"),
			Lines: []figure.Line{
				r.against("Fanfare, BIRD", figure.Blue, func(r result) measure.Sample { return r.BIRD.Answer }),
				r.against("Fanfare, FRR", figure.Green, func(r result) measure.Sample { return r.Created.Answer }),
				r.against("kube-proxy", figure.Vermilion, func(r result) measure.Sample { return r.Created.Proxy }),
			},
		},
		r.answers(),
		r.fills(),
	}
}

// against draws the medians of a sample against the number of Services.
func (r report) against(name string, c color.Color, of func(result) measure.Sample) figure.Line {
	l := figure.Line{Name: name, Color: c}
	for _, res := range r.Results {
		s := of(res)
		l.Points = append(l.Points, figure.Point{
			X: float64(res.Services), Y: s.Quantile(0.5).Seconds(), High: s.Quantile(0.95).Seconds(),
		})
	}
	return l
}

// answers draws the distribution of first answers with the largest number of Services.
func (r report) answers() figure.Figure {
	last := r.Results[len(r.Results)-1]
	f := figure.Figure{
		Name: "kube-answers", Title: "A Service is created beside " + measure.Thousands(last.Services) + " others",
		Legend: true, X: seconds("time from the request"),
		Y: figure.Axis{Label: "part of all events", Max: 1, Tick: figure.Percent},
		Lines: []figure.Line{
			figure.Distribution("first answer behind BIRD", figure.Blue, last.BIRD.Answer),
			figure.Distribution("first answer behind FRR, which has an aggregate", figure.Purple,
				last.Aggregated.Answer),
			figure.Distribution("first answer behind FRR", figure.Green, last.Created.Answer),
			figure.Distribution("kube-proxy: in its node's kernel", figure.Vermilion, last.Created.Proxy),
		},
	}
	if r.busy() {
		f.Lines = append(f.Lines, figure.Distribution("first answer behind FRR, three busy nodes", figure.Orange,
			last.Busy.Created.Answer))
	}
	return f
}

// fills draws the CPU time for each new Service while many are created.
func (r report) fills() figure.Figure {
	f := figure.Figure{
		Name: "kube-fill", Title: "Many Services are created: CPU time for each",
		X: r.services(), Y: seconds("CPU time"),
	}
	for _, p := range []struct {
		name, process string
		c             color.Color
	}{{"speaker", speakerName, figure.Blue}, {"controller 1", controllerName(1), figure.Green},
		{"controller 2", controllerName(2), figure.Purple}, {proxyName, proxyName, figure.Vermilion}} {
		l := r.spentEach(p.process, p.c)
		l.Name = p.name
		f.Lines = append(f.Lines, l)
	}
	return f
}

// spentEach draws a process's CPU time for each new Service. The clock of CPU times ticks a
// hundred times a second: at least one tick is drawn.
func (r report) spentEach(process string, c color.Color) figure.Line {
	l := figure.Line{Color: c}
	for _, res := range r.Results {
		if d, ok := spentBy(res.Fill.Spent, process); ok {
			each := max(d, measure.ClockTick) / time.Duration(res.Fill.Services)
			l.Points = append(l.Points, figure.Point{X: float64(res.Services), Y: each.Seconds()})
		}
	}
	return l
}
