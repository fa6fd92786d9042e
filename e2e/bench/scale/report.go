package scale

import (
	_ "embed"
	"fmt"
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
	Runs         []run
}

// newReport is a report without results.
func (o *options) newReport() report {
	return report{Began: time.Now(), Small: o.sizes[0], Large: o.sizes[1], Create: o.create, Duration: o.duration}
}

// find finds a phase; ok is false if that kind has none of the name.
func (r report) find(s size, k kind, name string) (p phase, ok bool) {
	for _, one := range r.Runs {
		for _, p := range one.Phases {
			if one.Size == s && one.Kind == k && p.Name == name {
				return p, true
			}
		}
	}
	return phase{}, false
}

// IdleWatches is how many watches speakers opened while nothing happened: each is a node that another one
// takes for dead, because the machine is too busy.
func (r report) IdleWatches() (n int64) {
	for _, s := range []size{r.Small, r.Large} {
		p, _ := r.find(s, speakers, "idle")
		n += p.Count.Watches
	}
	return n
}

//go:embed report.md.tmpl
var document string

func (r report) render() (string, error) {
	return measure.Render(document, template.FuncMap{
		"seconds": func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) },
		"mb":      func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) },
		"cores":   func(p phase) string { return fmt.Sprintf("%.2f", p.CPU.Seconds()/p.Took.Seconds()) },
		"count":   func(n float64) string { return measure.Thousands(int(n)) },
	}, r)
}
