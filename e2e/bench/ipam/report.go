package ipam

import (
	_ "embed"
	"fmt"
	"text/template"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// A report holds the results.
type report struct {
	Began   time.Time
	Took    time.Duration
	Machine measure.Machine

	Services, Restarts, Changes int

	Created     time.Duration // of all Services, from the first request
	First, Last time.Duration // first and last address, from the start of the controller
	Usage       measure.Usage // of the controller at that time
	Again       measure.Sample
	New         measure.Sample
	Freed       measure.Sample
}

func (r report) Creators() int { return creators }

//go:embed report.md.tmpl
var document string

func (r report) render() (string, error) {
	return measure.Render(document, template.FuncMap{
		"perSecond": func(n int, d time.Duration) string { return fmt.Sprintf("%.0f", float64(n)/d.Seconds()) },
		"seconds":   func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) },
	}, r)
}
