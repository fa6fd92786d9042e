package gossip

import (
	_ "embed"
	"fmt"
	"image/color"
	"strings"
	"text/template"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/figure"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// target is the time within which all others should detect a death.
const target = 600 * time.Millisecond

// A cluster is what the simulation of one cluster writes: simulationResult of
// internal/membership/gossip.
type cluster struct {
	Members                       int
	Virtual                       time.Duration // the simulated time
	Seed                          uint64        // of the first part
	Parts                         int
	Loss                          float64
	Latency, Stall, StallInterval time.Duration
	Stalls, Lost                  int
	// First, Most and All are, of each power loss, the time until one, 99 % and all of the others
	// held the node dead; Back is from the start of its new process until all held it alive.
	First, Most, All, Back    measure.Sample
	FalseDeaths, FalseReports int
	Packets, Bytes            float64       // that a member sent each second
	CPU                       time.Duration // of all members
}

// merge returns what the parts of a cluster have together.
func merge(parts []cluster) cluster {
	all := parts[0]
	all.Parts = len(parts)
	all.Packets, all.Bytes = all.Packets*all.Virtual.Seconds(), all.Bytes*all.Virtual.Seconds()
	for _, p := range parts[1:] {
		all.Packets, all.Bytes = all.Packets+p.Packets*p.Virtual.Seconds(), all.Bytes+p.Bytes*p.Virtual.Seconds()
		all.Virtual, all.CPU = all.Virtual+p.Virtual, all.CPU+p.CPU
		all.Stalls, all.Lost = all.Stalls+p.Stalls, all.Lost+p.Lost
		all.First, all.Most = append(all.First, p.First...), append(all.Most, p.Most...)
		all.All, all.Back = append(all.All, p.All...), append(all.Back, p.Back...)
		all.FalseDeaths, all.FalseReports = all.FalseDeaths+p.FalseDeaths, all.FalseReports+p.FalseReports
	}
	all.Packets, all.Bytes = all.Packets/all.Virtual.Seconds(), all.Bytes/all.Virtual.Seconds()
	return all
}

// MemberHours is for how long members ran, in total, in hours.
func (c cluster) MemberHours() float64 { return float64(c.Members) * c.Virtual.Hours() }

// InTime is how many deaths all others detected within the target.
func (c cluster) InTime() (n int) {
	for _, d := range c.All {
		if d <= target {
			n++
		}
	}
	return n
}

// Share is the part of a core that the code of one member takes, without the kernel's part.
func (c cluster) Share() float64 {
	return c.CPU.Seconds() / c.Virtual.Seconds() / float64(c.Members)
}

// A report holds the results.
type report struct {
	Began    time.Time
	Took     time.Duration
	Machine  measure.Machine
	Clusters []cluster // from the smallest to the largest

	Deaths                       int           // in each cluster, at most
	VirtualLimit, ProcessorLimit time.Duration // of each cluster; of processor time, of each part
}

func (r report) Largest() cluster { return r.Clusters[len(r.Clusters)-1] }
func (r report) Target() string   { return measure.Pretty(target) }

//go:embed report.md.tmpl
var document string

func (r report) render() (string, error) {
	return measure.Render(document, template.FuncMap{
		"quantiles": quantiles,
		"percent":   func(part float64) string { return fmt.Sprintf("%.2g %%", 100*part) },
		"rounded":   func(n float64) string { return measure.Thousands(int(n + 0.5)) },
	}, r)
}

// quantiles formats the median, the 95th percentile and the maximum of a sample.
func quantiles(s measure.Sample) string {
	if len(s) == 0 {
		return "–"
	}
	var all []string
	for _, q := range []float64{0.5, 0.95, 1} {
		all = append(all, fmt.Sprintf("%.2f", s.Quantile(q).Seconds()))
	}
	return strings.Join(all, " / ") + " s"
}

var colours = []color.Color{figure.Blue, figure.Vermilion, figure.Green, figure.Purple}

// figures draws the distribution of the time until all others have detected a death.
func (r report) figures() []figure.Figure {
	f := figure.Figure{
		Name: "gossip-detection", Title: "A node loses its power: until all others have detected it", Legend: true,
		X: figure.Axis{Label: "time from the power loss", Tick: figure.Seconds},
		Y: figure.Axis{Label: "part of all deaths", Max: 1, Tick: figure.Percent},
	}
	for i, c := range r.Clusters {
		f.Lines = append(f.Lines, figure.Distribution(fmt.Sprintf("%s members", measure.Thousands(c.Members)),
			colours[i%len(colours)], c.All))
	}
	return []figure.Figure{f}
}
