package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"text/template"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/kube/measure"
)

// A report is what was measured.
type report struct {
	options
	Began   time.Time
	Took    time.Duration
	Machine machine

	Created     time.Duration // of all Services, from the first request
	First, Last time.Duration // addresses, from the start of the controller
	Usage       measure.Usage // of the controller, then
	Again       measure.Sample
	New         measure.Sample
	Freed       measure.Sample
}

// A machine is what the numbers depend on besides the programs measured, and the versions
// of those.
type machine struct {
	measure.Machine
	Fanfare, Kubernetes string
}

func (b *bench) describe(ctx context.Context) (m machine, err error) {
	tools, toolsErr := kube.Tools(ctx, false)
	m.Machine, err = measure.ThisMachine()
	return m, errors.Join(err, toolsErr, measure.Versions(ctx,
		measure.Version{To: &m.Fanfare, Cut: "fanfare version ", Command: []string{b.binary, "--version"}},
		measure.Version{To: &m.Kubernetes, Cut: "Kubernetes ", Command: []string{tools, "kube-apiserver", "--version"}},
	))
}

func (r report) Services() int { return r.services }
func (r report) Restarts() int { return r.restarts }
func (r report) Changes() int  { return r.changes }
func (r report) Creators() int { return creators }

//go:embed report.md.tmpl
var document string

func (r report) render() (string, error) {
	return measure.Render(document, template.FuncMap{
		"perSecond": func(n int, d time.Duration) string { return fmt.Sprintf("%.0f", float64(n)/d.Seconds()) },
		"seconds":   func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) },
	}, r)
}
