package figure

import (
	"bytes"
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Figure is lines on two axes. Each line has its name beside its end, or in a legend below.
type Figure struct {
	Name   string // of the file, without its extension
	Title  string
	X, Y   Axis
	Lines  []Line
	Legend bool // for lines that end at the same place
}

// An Axis has a label, which says the unit, and text at its ticks.
type Axis struct {
	Label string
	Tick  func(float64) string // nil: the number
	Log   bool                 // all values are positive
	// Ticks are the places of the labelled ticks; nil: round numbers.
	Ticks []float64
	// Min and Max are the ends; both 0: those of the values.
	Min, Max float64
}

// A Line connects points in their order. One without points is left out.
type Line struct {
	Name   string
	Points []Point
	Color  color.Color
	Dashed bool
	Steps  bool // horizontal until the next point, without marks
}

// A Point may have an upper value, shown as a bar above it; 0: none.
type Point struct{ X, Y, High float64 }

// Colours that people with any colour vision distinguish, by Okabe and Ito
// (https://jfly.uni-koeln.de/color). The background is white, also on a dark page.
var (
	Blue      = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	Vermilion = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	Green     = color.RGBA{0x00, 0x9e, 0x73, 0xff}
	Purple    = color.RGBA{0xaa, 0x44, 0x99, 0xff}
	Orange    = color.RGBA{0xe6, 0x9f, 0x00, 0xff}
	grey      = color.RGBA{0xdd, 0xdd, 0xdd, 0xff}
)

const (
	width, height = 16 * vg.Centimeter, 9 * vg.Centimeter
	margin        = 6 * vg.Millimeter
	// besides is the room for the names of lines, of some 15 letters.
	besides = 3 * vg.Centimeter
)

// family replaces the font that the SVG names, which few systems have.
const family = "font-family:'Liberation Sans',Arial,Helvetica,sans-serif;"

// SVG returns the figure as SVG.
func (f Figure) SVG() ([]byte, error) {
	p, legend, err := f.plot()
	if err != nil {
		return nil, err
	}
	below := legend.Rectangle(draw.Canvas{}).Size().Y
	if f.Legend {
		below += margin
	}
	on := vgsvg.New(width, height+below)
	c := draw.New(on)
	p.Draw(draw.Crop(c, margin/2, -margin, below+margin/2, -margin/2))
	legend.Draw(draw.Crop(c, margin, 0, margin/2, -height))
	var b bytes.Buffer
	_, err = on.WriteTo(&b)
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), []byte(family)), err
}

// plot returns the figure without its legend, and that.
func (f Figure) plot() (*plot.Plot, plot.Legend, error) {
	p := plot.New()
	p.Title.Text, p.Title.Padding = f.Title, vg.Points(8)
	p.BackgroundColor = color.White
	setFonts(p)
	f.X.apply(&p.X)
	f.Y.apply(&p.Y)
	p.Add(grid())
	for _, l := range f.Lines {
		if len(l.Points) == 0 {
			continue
		}
		if err := l.add(p); err != nil {
			return nil, plot.Legend{}, fmt.Errorf("line %s: %w", l.Name, err)
		}
	}
	f.X.limit(&p.X)
	f.Y.limit(&p.Y)
	legend := p.Legend
	p.Legend = plot.NewLegend()
	if !f.Legend {
		p.Add(names(f.Lines))
		return p, p.Legend, nil
	}
	return p, legend, nil
}

// setFonts replaces the default, which has serifs.
func setFonts(p *plot.Plot) {
	title := &p.Title.TextStyle
	title.Font.Variant, title.Font.Size = "Sans", vg.Points(12)
	for _, s := range []*draw.TextStyle{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label,
		&p.Legend.TextStyle} {
		s.Font.Variant, s.Font.Size = "Sans", vg.Points(10)
	}
	p.Legend.Top, p.Legend.Left, p.Legend.Padding = true, true, vg.Points(3)
}

func grid() *plotter.Grid {
	g := plotter.NewGrid()
	g.Horizontal.Color, g.Vertical.Color = grey, grey
	return g
}

// add draws a line, its marks and the bars of its points.
func (l Line) add(p *plot.Plot) error {
	line, err := plotter.NewLine(l)
	if err != nil {
		return err
	}
	line.Color, line.Width = l.Color, vg.Points(1.8)
	if l.Dashed {
		line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
	}
	if l.Steps {
		line.StepStyle = plotter.PostStep
	}
	p.Add(line)
	p.Legend.Add(l.Name, line)
	if l.Steps {
		return nil
	}
	return l.mark(p)
}

func (l Line) mark(p *plot.Plot) error {
	marks, err := plotter.NewScatter(l)
	if err != nil {
		return err
	}
	marks.Color, marks.Shape, marks.Radius = l.Color, draw.CircleGlyph{}, vg.Points(2.5)
	bars, err := plotter.NewYErrorBars(l)
	if err != nil {
		return err
	}
	bars.Color, bars.Width, bars.CapWidth = l.Color, vg.Points(0.8), vg.Points(5)
	p.Add(bars, marks)
	return nil
}

// Len, XY and YError give the plotters the points.

func (l Line) Len() int                    { return len(l.Points) }
func (l Line) XY(i int) (float64, float64) { return l.Points[i].X, l.Points[i].Y }
func (l Line) YError(i int) (float64, float64) {
	return 0, math.Max(0, l.Points[i].High-l.Points[i].Y)
}
