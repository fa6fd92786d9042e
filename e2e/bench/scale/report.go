package scale

import (
	_ "embed"
	"fmt"
	"math"
	"strings"
	"text/template"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// A run is the phases of one kind of client at one size.
type run struct {
	Size   size
	Kind   kind
	Phases []phase
}

// A report holds the results.
type report struct {
	Began   time.Time
	Took    time.Duration
	Machine measure.Machine

	Small, Large size
	Create       int           // Services
	Duration     time.Duration // of the phases in which something lasts
	Idle         time.Duration // of that in which nothing happens
	Runs         []run
}

// newReport is a report without results.
func (o *options) newReport() report {
	return report{
		Began: time.Now(), Small: o.sizes[0], Large: o.sizes[1], Create: o.create, Duration: o.duration, Idle: o.idle,
	}
}

// phases are those of one run.
func (r report) phases(s size, k kind) []phase {
	for _, one := range r.Runs {
		if one.Size == s && one.Kind == k {
			return one.Phases
		}
	}
	return nil
}

// find finds a phase; ok is false if that kind has none of the name.
func (r report) find(s size, k kind, name string) (p phase, ok bool) {
	for _, p := range r.phases(s, k) {
		if p.Name == name {
			return p, true
		}
	}
	return phase{}, false
}

// FalseDeaths are the phases in which speakers took running ones for dead, because the machine was too busy.
func (r report) FalseDeaths() (phases []string) {
	for _, s := range []size{r.Small, r.Large} {
		for _, p := range r.phases(s, speakers) {
			if n := p.Count.FalseDeaths; n > 0 {
				phases = append(phases, fmt.Sprintf("*%s* with %d nodes (%d times)", p.Name, s.Nodes, n))
			}
		}
	}
	return phases
}

// IdleWrites is how often a speaker writes in a second while nothing happens, in the larger cluster.
func (r report) IdleWrites() float64 {
	p, _ := r.find(r.Large, speakers, idle)
	return float64(p.Count.Writes) / max(p.Took.Seconds(), 1e-9) / float64(r.Large.Nodes)
}

// A comparison is one phase with both kinds of clients.
type comparison struct {
	Phase                         string
	Speakers, Proxies             load
	SpeakersMargin, ProxiesMargin float64 // of a predicted CPU time, in seconds
}

// Compare compares the phases in the larger cluster.
func (r report) Compare() (all []comparison) {
	for _, s := range r.phases(r.Large, speakers) {
		if p, ok := r.find(r.Large, proxies, s.Name); ok {
			all = append(all, comparison{Phase: s.Name, Speakers: loadOf(s), Proxies: loadOf(p)})
		}
	}
	return all
}

// noise is how much more CPU time is no difference.
const noise = 1.1

// Noise is that in percent.
func (r report) Noise() string { return fmt.Sprintf("%.0f %%", 100*(noise-1)) }

// More are the phases in which speakers cost the API server more CPU time than kube-proxies.
func (r report) More() (phases []string) {
	for _, c := range r.Compare() {
		if c.Speakers.CPU > noise*c.Proxies.CPU {
			phases = append(phases, "*"+c.Phase+"*")
		}
	}
	return phases
}

//go:embed report.md.tmpl
var document string

//go:embed phases.md.tmpl
var phasesDocument string

func (r report) render() (string, error) { return r.execute(document) }

// further is the page of all phases.
func (r report) further() ([]measure.File, error) {
	text, err := r.execute(phasesDocument)
	return []measure.File{{Name: "scale-phases.md", Content: []byte(text)}}, err
}

func (r report) execute(document string) (string, error) {
	return measure.Render(document, template.FuncMap{
		"seconds": func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) },
		"mb":      func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) },
		"number":  number,
		"join":    strings.Join,
		"count":   func(n float64) string { return measure.Thousands(int(n)) },
	}, r)
}

// number formats a number to about three digits.
func number(x float64) string {
	switch {
	case x < 10:
		return fmt.Sprintf("%.1f", x)
	case x < 1000:
		return fmt.Sprintf("%.0f", x)
	}
	unit := math.Pow(10, math.Floor(math.Log10(x))-2)
	return measure.Thousands(int(math.Round(x/unit) * unit))
}
