package kube

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// A report holds the content of the page.
type report struct {
	Repeats int
	Began   time.Time
	Took    time.Duration
	Machine measure.Machine
	Results []result
}

//go:embed report.md.tmpl
var document string

func (r report) render() (string, error) {
	return measure.Render(document, template.FuncMap{"row": r.row, "head": r.head, "names": r.names, "used": r.used,
		"busy": r.busy}, r)
}

// head returns the head of a table with a column for each number of Services.
func (r report) head(what string) string {
	cells := []string{what}
	for _, res := range r.Results {
		cells = append(cells, measure.Thousands(res.Services)+" Services")
	}
	return line(cells) + "\n" + line(append([]string{"---"}, repeat("---:", len(r.Results))...))
}

// rows are the values of a result by the names that the template uses.
var rows = map[string]func(result) string{
	"created/taken":   func(r result) string { return r.Created.Accepted.String() },
	"created/address": func(r result) string { return r.Created.Address.String() },
	"created/rules":   func(r result) string { return r.Created.Rules.String() },
	"created/update":  func(r result) string { return r.Created.Update.String() },
	"created/route":   func(r result) string { return r.Created.Route.String() },
	"created/answer":  func(r result) string { return r.Created.Answer.String() },
	"created/frr":     func(r result) string { return r.Created.FRR.String() },
	"created/ours":    func(r result) string { return r.Created.WithoutFRR.String() },
	"created/proxy":   func(r result) string { return r.Created.Proxy.String() },

	"part/rules":  func(r result) string { return r.Aggregated.Rules.String() },
	"part/answer": func(r result) string { return r.Aggregated.Answer.String() },

	"busy/taken":   func(r result) string { return r.Busy.Created.Accepted.String() },
	"busy/address": func(r result) string { return r.Busy.Created.Address.String() },
	"busy/rules":   func(r result) string { return r.Busy.Created.Rules.String() },
	"busy/update":  func(r result) string { return r.Busy.Created.Update.String() },
	"busy/route":   func(r result) string { return r.Busy.Created.Route.String() },
	"busy/answer":  func(r result) string { return r.Busy.Created.Answer.String() },
	"busy/proxy":   func(r result) string { return r.Busy.Created.Proxy.String() },
	"busy/ours":    func(r result) string { return r.Busy.Created.WithoutFRR.String() },

	"bird/update": func(r result) string { return r.BIRD.Update.String() },
	"bird/answer": func(r result) string { return r.BIRD.Answer.String() },

	"calm/taken":    func(r result) string { return r.Eager.Calm.Accepted.String() },
	"calm/rules":    func(r result) string { return both(r.Eager.Calm.Rules, r.Default.Calm.Rules).String() },
	"calm/answer":   func(r result) string { return both(r.Eager.Calm.Answer, r.Default.Calm.Answer).String() },
	"calm/proxy":    func(r result) string { return r.Eager.Calm.Proxy.String() },
	"calm/patient":  func(r result) string { return r.Default.Calm.Proxy.String() },
	"calm/ratio":    func(r result) string { return ratio(r.Eager.Calm.Proxy, r.Eager.Calm.Rules) },
	"churn/taken":   func(r result) string { return r.Eager.Churn.Accepted.String() },
	"churn/rules":   func(r result) string { return both(r.Eager.Churn.Rules, r.Default.Churn.Rules).String() },
	"churn/answer":  func(r result) string { return both(r.Eager.Churn.Answer, r.Default.Churn.Answer).String() },
	"churn/proxy":   func(r result) string { return r.Eager.Churn.Proxy.String() },
	"churn/patient": func(r result) string { return r.Default.Churn.Proxy.String() },
	"churn/ratio":   func(r result) string { return ratio(r.Eager.Churn.Proxy, r.Eager.Churn.Rules) },

	"fill/services": func(r result) string { return measure.Thousands(r.Fill.Services) },
	"fill/created":  func(r result) string { return speed(r.Fill.Services, r.Fill.Created) },
	"fill/assigned": func(r result) string { return speed(r.Fill.Services, r.Fill.Assigned) },
	"fill/lag":      func(r result) string { return measure.Pretty(r.Fill.Assigned - r.Fill.Created) },
	"fill/each":     func(r result) string { return r.Fill.Each.String() },
	"fill/kernel":   func(r result) string { return measure.Pretty(r.Fill.Kernel) },
	"fill/proxy":    func(r result) string { return measure.Pretty(r.Fill.Proxy) },
}

// row returns a line of a table with a cell for each result.
func (r report) row(what, name string) (string, error) {
	cell, ok := rows[name]
	if !ok {
		return "", fmt.Errorf("BUG: there is no row %q", name)
	}
	cells := []string{what}
	for _, res := range r.Results {
		cells = append(cells, cell(res))
	}
	return line(cells), nil
}

// busy says whether Services were also created while all nodes had work. Older results lack it.
func (r report) busy() bool {
	return len(r.Results) > 0 && len(r.Results[len(r.Results)-1].Busy.Created.Answer) > 0
}

// names returns the names of the processes.
func (r report) names() []string {
	var names []string
	for _, u := range r.Results[0].Usage {
		names = append(names, u.Name)
	}
	return names
}

// used returns a line of a table with the usage of a process for each number of Services.
func (r report) used(what, name string) (string, error) {
	cells := []string{name}
	for _, res := range r.Results {
		switch what {
		case "memory":
			cells = append(cells, memory(res.Usage, name))
		case "idle":
			cells = append(cells, core(res.Idle, name))
		case "churn":
			cells = append(cells, core(res.Eager.CPU, name))
		case "fill":
			cells = append(cells, spent(res.Fill, name))
		default:
			return "", fmt.Errorf("BUG: nothing is called %q", what)
		}
	}
	return line(cells), nil
}

func memory(all []measure.Usage, name string) string {
	for _, u := range all {
		if u.Name == name {
			return fmt.Sprintf("%d / %d MB", u.RSS/1e6, u.Peak/1e6)
		}
	}
	return "–"
}

// core formats a part of one core.
func core(all []measure.Share, name string) string {
	for _, s := range all {
		if s.Name == name {
			return fmt.Sprintf("%.1f %%", 100*s.Core)
		}
	}
	return "–"
}

// spent formats the CPU time of a fill, and its part for each new Service.
func spent(f fill, name string) string {
	d, ok := spentBy(f.Spent, name)
	if !ok {
		return "–"
	}
	return fmt.Sprintf("%.1f s, %s each", d.Seconds(), measure.Pretty(d/time.Duration(f.Services)))
}

func spentBy(all []measure.Spent, name string) (time.Duration, bool) {
	for _, s := range all {
		if s.Name == name {
			return s.CPU, true
		}
	}
	return 0, false
}

// both joins two samples.
func both(a, b measure.Sample) measure.Sample { return append(append(measure.Sample(nil), a...), b...) }

// ratio compares the medians of two samples.
func ratio(a, b measure.Sample) string {
	if len(b) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f ×", float64(a.Quantile(0.5))/float64(b.Quantile(0.5)))
}

// speed formats a time and the rate that results.
func speed(n int, d time.Duration) string {
	return fmt.Sprintf("%s, %.0f a second", measure.Pretty(d), float64(n)/d.Seconds())
}

func line(cells []string) string { return "| " + strings.Join(cells, " | ") + " |" }

func repeat(s string, n int) []string {
	var all []string
	for range n {
		all = append(all, s)
	}
	return all
}
