package bgp

import (
	_ "embed"
	"fmt"
	"text/template"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// A report is everything that the page says.
type report struct {
	options
	Began   time.Time
	Took    time.Duration
	Machine measure.Machine
	Results []result // in the order of makers
}

//go:embed report.md.tmpl
var document string

func (r report) render() (string, error) {
	return measure.Render(document, template.FuncMap{"kilobytes": func(n int) string { return fmt.Sprintf("%.0f kB", float64(n)/1e3) }}, r)
}

// What the template asks for.

func (r report) Routes() int     { return r.routes }
func (r report) Routers() int    { return r.routers }
func (r report) Starts() int     { return r.starts }
func (r report) Fanfare() result { return r.Results[0] }
func (r report) FRR() result     { return r.Results[1] }
func (r report) Silent() result  { return r.Results[2] }

// Share is what the memory of announcing is, of one router.
func (r report) Share() string {
	each := float64(r.Fanfare().RSS-r.Silent().RSS) / float64(r.routes*r.routers)
	return fmt.Sprintf("%.0f bytes", each)
}
