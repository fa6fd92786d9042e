package figure

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func sample() Figure {
	line := func(name string, y float64) Line {
		return Line{Name: name, Color: Blue, Points: []Point{{X: 10, Y: y}, {X: 5000, Y: 2 * y, High: 3 * y}}}
	}
	return Figure{
		Title: "A & B", X: Axis{Label: "Services", Log: true}, Y: Axis{Label: "time", Log: true, Tick: Seconds},
		Lines: []Line{line("one", 0.005), line("two", 0.00501), {Name: "none"}, line("three", 0.3)},
	}
}

// The same figure is the same SVG, small, well-formed and with all texts.
func TestSVG(t *testing.T) {
	first, err := sample().SVG()
	if err != nil {
		t.Fatal(err)
	}
	second, err := sample().SVG()
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("a second time it is another one; %v", err)
	}
	if len(first) > 60_000 {
		t.Errorf("%d bytes: want at most 60000", len(first))
	}
	for d := xml.NewDecoder(bytes.NewReader(first)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"A &amp; B", ">Services<", ">time<", ">1000<", ">10 ms<", ">one<", ">three<",
		"sans-serif", "fill:#FFFFFF"} {
		if !strings.Contains(string(first), want) {
			t.Errorf("no %q in\n%s", want, first)
		}
	}
	if strings.Contains(string(first), ">none<") {
		t.Error("a line without points has a name")
	}
}

// Names of lines that end at the same place are one above the other.
func TestNamesDoNotCover(t *testing.T) {
	text, err := sample().SVG()
	if err != nil {
		t.Fatal(err)
	}
	height := func(name string) float64 {
		m := regexp.MustCompile(`y="([-\d.]+)"[^>]*>` + name + `<`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("no %s in\n%s", name, text)
		}
		y, _ := strconv.ParseFloat(string(m[1]), 64)
		return y
	}
	if d := height("two") - height("one"); -10 < d && d < 10 {
		t.Errorf("the names are %.1f points apart, want the height of a line", d)
	}
}

func TestTicks(t *testing.T) {
	labels := func(a Axis, low, high float64) string {
		var all []string
		for _, tick := range a.ticks(low, high) {
			if !tick.IsMinor() {
				all = append(all, tick.Label)
			}
		}
		return strings.Join(all, ", ")
	}
	for _, tt := range []struct {
		a         Axis
		low, high float64
		want      string
	}{
		{Axis{Log: true, Tick: Seconds}, 0.0005, 20, "1 ms, 10 ms, 100 ms, 1 s, 10 s"},
		{Axis{Log: true}, 10, 1000, "10, 100, 1000"},
		{Axis{Log: true}, 30, 600, "50, 100, 200, 500"},
		{Axis{Log: true, Ticks: []float64{10, 5000}}, 5, 6000, "10, 5000"},
		{Axis{Tick: Percent}, 0, 1, "0 %, 50 %, 100 %"},
	} {
		if got := labels(tt.a, tt.low, tt.high); got != tt.want {
			t.Errorf("%g to %g: %s, want %s", tt.low, tt.high, got, tt.want)
		}
	}
}

func TestDistribution(t *testing.T) {
	l := Distribution("x", Blue, []time.Duration{3 * time.Second, time.Second})
	want := []Point{{X: 1}, {X: 1, Y: 0.5}, {X: 3, Y: 1}}
	if len(l.Points) != len(want) {
		t.Fatalf("%v", l.Points)
	}
	for i, p := range l.Points {
		if p != want[i] {
			t.Errorf("point %d: %v, want %v", i, p, want[i])
		}
	}
	if l = Distribution("none", Blue, nil); len(l.Points) != 0 {
		t.Errorf("without a sample: %v", l.Points)
	}
}
