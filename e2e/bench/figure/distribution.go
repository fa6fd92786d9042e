package figure

import (
	"image/color"
	"slices"
	"time"
)

// Distribution is the line of a sample's cumulative distribution: which part of all
// durations, in seconds, is at most x.
func Distribution(name string, c color.Color, sample []time.Duration) Line {
	l := Line{Name: name, Color: c, Steps: true}
	sorted := slices.Sorted(slices.Values(sample))
	for i, d := range sorted {
		if i == 0 {
			l.Points = append(l.Points, Point{X: d.Seconds()})
		}
		l.Points = append(l.Points, Point{X: d.Seconds(), Y: float64(i+1) / float64(len(sorted))})
	}
	return l
}
