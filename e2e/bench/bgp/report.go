package bgp

import (
	_ "embed"
	"fmt"
	"text/template"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// A report holds the content of the page.
type report struct {
	Began   time.Time
	Took    time.Duration
	Machine measure.Machine
	Routes  int
	Routers int
	Starts  int
	Results []result // in the order of announcerKinds
}

//go:embed report.md.tmpl
var document string

func (r report) render() (string, error) {
	return measure.Render(document, template.FuncMap{"kilobytes": func(n int) string {
		return fmt.Sprintf("%.0f kB", float64(n)/1e3)
	}}, r)
}

// Accessors for the template.

func (r report) Fanfare() result { return r.Results[0] }
func (r report) FRR() result     { return r.Results[1] }
func (r report) Silent() result  { return r.Results[2] }

// Share returns the memory for announcing one route to one router.
func (r report) Share() string {
	each := float64(r.Fanfare().RSS-r.Silent().RSS) / float64(r.Routes*r.Routers)
	return fmt.Sprintf("%.0f bytes", each)
}
