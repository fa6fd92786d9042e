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
	size
	Kind   kind
	Phases []phase
}

// A report holds the results.
type report struct {
	options
	Began   time.Time
	Took    time.Duration
	Machine measure.Machine
	Runs    []run
}

func (r report) Small() size             { return r.sizes[0] }
func (r report) Large() size             { return r.sizes[1] }
func (r report) Create() int             { return r.create }
func (r report) Duration() time.Duration { return r.duration }

// find finds a phase; ok is false if that kind has none of the name.
func (r report) find(s size, k kind, name string) (p phase, ok bool) {
	for _, one := range r.Runs {
		for _, p := range one.Phases {
			if one.size == s && one.Kind == k && p.Name == name {
				return p, true
			}
		}
	}
	return phase{}, false
}

// extra is what the clients cost beyond the changes themselves.
func (r report) extra(s size, k kind, name string) phase {
	p, _ := r.find(s, k, name)
	if without, ok := r.find(s, none, name); ok {
		// The duration of a phase without an end of its own is the same.
		p.CPU, p.Sent = max(0, p.CPU-without.CPU), max(0, p.Sent-without.Sent)
	}
	return p
}

// A model is the load of the large cluster.
const modelNodes, modelServices = 1000, 10_000

// perNode extrapolates a value that grows with the nodes alone.
func (r report) perNode(k kind, name string, value func(phase) float64) float64 {
	return value(r.extra(r.Large(), k, name)) / float64(r.Large().Nodes) * modelNodes
}

// perPair extrapolates a value that grows with nodes × Services.
func (r report) perPair(k kind, name string, value func(phase) float64) float64 {
	l := r.Large()
	return value(r.extra(l, k, name)) / float64(l.Nodes*l.Services) * modelNodes * modelServices
}

// A Row of the model has a value for each kind.
type Row struct{ What, Speakers, Proxies string }

// Model are the rows of the model.
func (r report) Model() []Row {
	row := func(what, unit string, of func(kind) float64) Row {
		return Row{what, fmt.Sprintf(unit, of(speakers)), fmt.Sprintf(unit, of(proxies))}
	}
	perSecond := func(value func(phase) float64) func(phase) float64 {
		return func(p phase) float64 { return p.PerSecond(value(p)) }
	}
	cpu := func(p phase) float64 { return p.CPU.Seconds() }
	bytes := func(p phase) float64 { return float64(p.Count.Received) }
	writes := func(p phase) float64 { return float64(p.Count.Writes) }
	sent := func(p phase) float64 { return p.Sent }
	return []Row{
		row("idle: writes a second", "%.0f", func(k kind) float64 { return r.perNode(k, "idle", perSecond(writes)) }),
		row("idle: watch events a second", "%.0f", func(k kind) float64 { return r.perNode(k, "idle", perSecond(sent)) * modelFactor(k, r) }),
		row("idle: cores of the API server", "%.1f", func(k kind) float64 { return r.perNode(k, "idle", perSecond(cpu)) }),
		row(fmt.Sprintf("%d endpoint changes a second: watch events a second", changesPerSecond), "%.0f", func(k kind) float64 { return r.perNode(k, "endpoint changes", perSecond(sent)) }),
		row("the same: cores of the API server", "%.1f", func(k kind) float64 { return r.perNode(k, "endpoint changes", perSecond(cpu)) }),
		row("start of all: GB", "%.0f", func(k kind) float64 { return r.perPair(k, "start", bytes) / 1e9 }),
		row("start of all: CPU seconds", "%.0f", func(k kind) float64 { return r.perPair(k, "start", cpu) }),
		row("API server restarted: GB", "%.0f", func(k kind) float64 { return r.perPair(k, "API server restarted", bytes) / 1e9 }),
		row(fmt.Sprintf("%s Services created: watch events", measure.Thousands(r.create)), "%.0f", func(k kind) float64 { return r.perNode(k, "Services created", sent) }),
		row("the same: CPU seconds of the API server", "%.0f", func(k kind) float64 { return r.perNode(k, "Services created", cpu) }),
	}
}

// modelFactor: each of the speakers receives the heartbeats of all Nodes, so that they grow with the
// square; a kube-proxy receives its own Node's.
func modelFactor(k kind, r report) float64 {
	if k == speakers {
		return modelNodes / float64(r.Large().Nodes)
	}
	return 1
}

//go:embed report.md.tmpl
var document string

func (r report) render() (string, error) {
	return measure.Render(document, template.FuncMap{
		"seconds": func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) },
		"mb":      func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) },
		"cores":   func(p phase) string { return fmt.Sprintf("%.2f", p.CPU.Seconds()/p.Took.Seconds()) },
		"rate": func(p phase, n int64, nodes int) string {
			return fmt.Sprintf("%.3f", p.PerSecond(float64(n))/float64(nodes))
		},
		"count": func(n float64) string { return measure.Thousands(int(n)) },
	}, r)
}
