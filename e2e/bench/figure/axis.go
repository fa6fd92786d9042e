package figure

import (
	"fmt"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

func (a Axis) apply(to *plot.Axis) {
	to.Label.Text, to.Label.Padding = a.Label, vg.Points(4)
	to.Tick.Marker = plot.TickerFunc(a.ticks)
	if a.Log {
		to.Scale = plot.LogScale{}
	}
}

// limit sets the ends, and widens those of a logarithmic axis a bit, so that no point is on
// its edge.
func (a Axis) limit(to *plot.Axis) {
	switch {
	case a.Min != 0 || a.Max != 0:
		to.Min, to.Max = a.Min, a.Max
	case a.Log:
		to.Min, to.Max = to.Min/1.5, to.Max*1.5
	}
}

// ticks labels the powers of ten of a logarithmic axis, and what the library chooses of
// another one.
func (a Axis) ticks(low, high float64) []plot.Tick {
	if !a.Log {
		all := plot.DefaultTicks{}.Ticks(low, high)
		for i, t := range all {
			if !t.IsMinor() {
				all[i].Label = a.text(t.Value)
			}
		}
		return all
	}
	var all []plot.Tick
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for digit := 1.0; digit < 10; digit++ {
			value, label := digit*math.Pow(10, e), ""
			if digit == 1 {
				label = a.text(value)
			}
			if value >= low && value <= high {
				all = append(all, plot.Tick{Value: value, Label: label})
			}
		}
	}
	return all
}

func (a Axis) text(v float64) string {
	if a.Tick == nil {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	return a.Tick(v)
}

// Seconds formats a duration in seconds, rounded to its first digits.
func Seconds(s float64) string {
	for _, u := range []struct {
		name  string
		times float64
	}{{"s", 1}, {"ms", 1e3}, {"µs", 1e6}} {
		if s*u.times >= 0.9999 || s == 0 {
			return strconv.FormatFloat(s*u.times, 'g', 4, 64) + " " + u.name
		}
	}
	return fmt.Sprintf("%.3g ns", s*1e9)
}

// Percent formats a part of 1.
func Percent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }

// names writes the name of each line at its last point, moved up where it would cover
// another one.
type names []Line

// Plot writes the names.
func (n names) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	style := p.X.Tick.Label
	style.XAlign, style.YAlign = draw.XRight, draw.YBottom
	space := style.Font.Size * 1.25
	var taken []vg.Length
	for _, l := range n {
		if len(l.Points) == 0 {
			continue
		}
		last := l.Points[len(l.Points)-1]
		y := toY(last.Y) + vg.Points(5)
		for i := 0; i < len(taken); i++ {
			if math.Abs(float64(taken[i]-y)) < float64(space) {
				y, i = taken[i]+space, -1
			}
		}
		taken = append(taken, y)
		style.Color = l.Color
		c.FillText(style, vg.Point{X: toX(last.X), Y: y}, l.Name)
	}
}
