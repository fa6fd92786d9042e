package l2

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A report holds the content of the page.
type report struct {
	Began     time.Time
	Took      time.Duration
	Machine   measure.Machine
	Runs      int // of each kind of failure
	Addresses int // at rest
	Created   []created
	Results   []result
	Pods      podLoss
	Rest      rest
}

//go:embed report.md.tmpl
var document string

func (r report) render() (string, error) {
	return measure.Render(document, template.FuncMap{
		"range3":  threeOf,
		"percent": func(core float64) string { return fmt.Sprintf("%.1f %%", 100*core) },
		"spread": func(list []int) string {
			return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ", "), "[]")
		},
	}, r)
}

// SpeakersAlone adds up the failures in which the node keeps running without its speaker.
func (r report) SpeakersAlone() (sum result) {
	for _, one := range r.Results {
		if one.Name == killed || one.Name == frozen {
			sum.Sent, sum.Lost, sum.Late = sum.Sent+one.Sent, sum.Lost+one.Lost, sum.Late+one.Late
		}
	}
	return sum
}

// threeOf formats the minimum, the median and the maximum of a sample.
func threeOf(s measure.Sample) string {
	if len(s) == 0 {
		return "–"
	}
	return fmt.Sprintf("%s / %s / %s", measure.Pretty(s.Quantile(0)), measure.Pretty(s.Quantile(0.5)),
		measure.Pretty(s.Quantile(1)))
}

// Accessors for the template.

func (r report) Rate() int      { return lab.Rate }
func (r report) Waited() string { return measure.Pretty(waited) }
