package figure

import (
	"cmp"
	"fmt"
	"math"
	"slices"
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

// ticks labels the powers of ten of a logarithmic axis, and 2 and 5 times as much if there is
// room; of another axis what the library chooses.
func (a Axis) ticks(low, high float64) []plot.Tick {
	switch {
	case a.Ticks != nil:
		var all []plot.Tick
		for _, v := range a.Ticks {
			all = append(all, plot.Tick{Value: v, Label: a.text(v)})
		}
		return all
	case !a.Log:
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
			if digit == 1 || (digit == 2 || digit == 5) && high/low < 100 {
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

// names writes the name of each line to the right of its last point, or above that where it
// would cover another one.
type names []Line

// Plot writes the names.
func (n names) Plot(c draw.Canvas, p *plot.Plot) {
	_, toY := p.Transforms(&c)
	style := p.X.Tick.Label
	style.XAlign, style.YAlign = draw.XLeft, draw.YCenter
	last := func(l Line) Point { return l.Points[len(l.Points)-1] }
	lines := slices.DeleteFunc(slices.Clone(n), func(l Line) bool { return len(l.Points) == 0 })
	slices.SortStableFunc(lines, func(a, b Line) int { return cmp.Compare(last(a).Y, last(b).Y) })
	lowest := c.Min.Y
	for _, l := range lines {
		y := max(toY(last(l).Y), lowest)
		lowest = y + style.Font.Size*1.2
		style.Color = l.Color
		c.FillText(style, vg.Point{X: c.Max.X + vg.Points(4), Y: y}, l.Name)
	}
}

// GlyphBoxes reserves the room for the names.
func (n names) GlyphBoxes(*plot.Plot) []plot.GlyphBox {
	room := vg.Rectangle{Min: vg.Point{Y: -1}, Max: vg.Point{X: besides, Y: 1}}
	return []plot.GlyphBox{{X: 1, Y: 0.5, Rectangle: room}}
}
