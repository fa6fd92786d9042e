package proxy

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
	Began               time.Time
	Took                time.Duration
	Machine             measure.Machine
	Services, Endpoints int
	Rounds              rounds
	Lanes               []laneResult
	Trials              []trial
	Set                 setTrial
	LoadOnly            loadOnly
}

// The project's targets.
const (
	packetTarget = 0.90 // of plain routing
	setTarget    = time.Millisecond
)

//go:embed report.md.tmpl
var document string

func (r report) render() (string, error) {
	return measure.Render(document, template.FuncMap{
		"request": func() int { return requestSize },
		"answer":  func() int { return answerSize },
	}, r)
}

// Rows returns the table of connections, requests or datagrams, through one Service and
// through many.
func (r report) Rows(what string) string {
	var b strings.Builder
	for _, name := range r.names(what) {
		cells := []string{name}
		for _, size := range []int{1, r.Services} {
			cells = append(cells, r.cells(what, name, size)...)
		}
		fmt.Fprintln(&b, line(cells))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// names returns the lanes that carry such traffic through many Services, and plain routing.
func (r report) names(what string) (names []string) {
	for _, l := range r.Lanes {
		if l.Size == r.Services && len(l.measured(what)) > 0 {
			names = append(names, l.Name)
		}
	}
	return names
}

// References returns the rows of the reference lanes, with one Service at most.
func (r report) References() string {
	var b strings.Builder
	for _, l := range r.Lanes {
		if l.Size > 1 || len(l.Datagrams) == 0 {
			continue
		}
		cells := []string{l.Name}
		for _, what := range []string{"connections", "datagrams"} {
			cells = append(cells, r.ratio(l, what), l.each(what))
		}
		fmt.Fprintln(&b, line(cells))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// cells returns the number per second and its ratio to plain routing.
func (r report) cells(what, name string, size int) []string {
	l, ok := r.find(name, size)
	if !ok {
		return []string{"–", "–"}
	}
	return []string{measure.Thousands(int(rates(l.measured(what)).Median)), r.ratio(l, what)}
}

// find returns a lane, if it exists. Plain routing passes no table, so that its lane for one
// Service has size 0.
func (r report) find(name string, size int) (l laneResult, ok bool) {
	for _, l := range r.Lanes {
		if l.Name == name && (l.Size == size || l.Size == 0 && size == 1) {
			return l, true
		}
	}
	return l, false
}

func (l laneResult) measured(what string) []rate {
	switch what {
	case "connections":
		return l.Connections
	case "requests":
		return l.Requests
	}
	return l.Datagrams
}

// part compares a lane with plain routing to the same pods, which is 1.
func (r report) part(l laneResult, what string) quartiles {
	base, _ := r.find(plainName, l.Size)
	return ratios(l.measured(what), base.measured(what))
}

func (r report) ratio(l laneResult, what string) string {
	s := r.part(l, what)
	if l.Name == plainName {
		return fmt.Sprintf("%.2f", s.Median)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Low, s.High)
}

// each returns the time for one connection or datagram.
func (l laneResult) each(what string) string {
	return fmt.Sprintf("%.2f µs", 1e6/rates(l.measured(what)).Median)
}

// A target is a target of the project and its result.
type target struct{ What, Want, Is, Verdict string }

// Targets compares the results with the targets.
func (r report) Targets() []target {
	var all []target
	for _, by := range []struct{ lane, words string }{{rulesName, "by the rules"}, {fastName, "by the fast path"}} {
		for _, size := range []int{1, r.Services} {
			l, ok := r.find(by.lane, size)
			if !ok {
				continue
			}
			for _, what := range []string{"connections", "datagrams"} {
				all = append(all, target{
					fmt.Sprintf("%s through %s %s, ÷ plain routing", what, plural(size), by.words),
					fmt.Sprintf("≥ %.2f", packetTarget), fmt.Sprintf("%.2f", r.part(l, what).Median),
					verdict(r.part(l, what).Median >= packetTarget),
				})
			}
		}
	}
	p99 := r.Set.Changes.Quantile(0.99)
	return append(all, target{
		fmt.Sprintf("from a changed State to the programmed kernel, %s, 99th percentile", plural(r.Services)),
		"< " + measure.Pretty(setTarget), measure.Pretty(p99), verdict(p99 < setTarget),
	})
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "**missed**"
}

func plural(services int) string {
	if services == 1 {
		return "1 Service"
	}
	return measure.Thousands(services) + " Services"
}

func line(cells []string) string { return "| " + strings.Join(cells, " | ") + " |" }
