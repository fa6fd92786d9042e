package matrix

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

var (
	all     = flag.Bool("all", false, "run all cells, not only the cells in -run or a tenth")
	slack   = flag.Int("slack", lab.Shared, "multiplies bounds on time: one is for an idle machine")
	results = flag.String("results", "", "add the results to those in this file of JSON")
	page    = flag.String("page", "", "write the table of results to this file of Markdown")
)

// tenth is the part of all cells that a run without -all and -run has.
const tenth = 10

// selection says which cells run, and why.
type selection struct {
	commit string // empty: all
}

func selected(ctx context.Context) selection {
	if *all || strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return selection{}
	}
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
	if err != nil {
		return selection{"unknown"} // a source without its history
	}
	return selection{strings.TrimSpace(string(out))}
}

// has reports whether a cell is in the selection. Every commit selects other cells.
func (s selection) has(f feature, d disturbance) bool {
	if s.commit == "" {
		return true
	}
	h := fnv.New64a()
	h.Write([]byte(s.commit + "/" + f.name + "/" + d.name))
	return mix(h.Sum64())%tenth == 0
}

// mix spreads the bits of a hash: the low ones of FNV depend on the end of the text alone.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// cells returns the disturbances of a feature that are selected and exist.
func (s selection) cells(f feature) (list []disturbance) {
	for _, d := range disturbances {
		if find(f, d).reason == "" && s.has(f, d) {
			list = append(list, d)
		}
	}
	return list
}

func (s selection) String() string {
	if s.commit == "" {
		return "all cells, or the cells in -run"
	}
	var names []string
	for _, f := range features {
		for _, d := range s.cells(f) {
			names = append(names, f.name+"/"+d.name)
		}
	}
	return "a tenth of the cells, by the commit " + s.commit + ": " + strings.Join(names, " ")
}

func TestMatrix(t *testing.T) {
	if testing.Short() {
		t.Skip("a laboratory with routers takes minutes")
	}
	if err := lab.Missing("iptables"); err != nil {
		nstest.Missing(t, err.Error())
	}
	s := selected(t.Context())
	t.Log(s)
	p, err := buildPrograms(t.Context(), t.TempDir())
	must(t, err)
	m := &measured{commit: measure.Commit(t.Context(), source)}
	for _, f := range features {
		cells := s.cells(f)
		if len(cells) == 0 {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			f.run(t, p, slices.DeleteFunc(slices.Clone(cells), f.lacks), f.proxy != "", m)
			f.run(t, p, slices.DeleteFunc(cells, func(d disturbance) bool { return !f.lacks(d) }), true, m)
		})
		if *results != "" {
			must(t, m.save(t.Context(), p.fanfare, *results, *page))
		}
	}
}

// run runs cells of a feature in a lab, which reads an API server or a folder. The lab is built when
// the first cell needs it, since -run may name none of them. A cell that leaves the lab broken costs
// the next one a repair, or a new lab.
func (f feature) run(t *testing.T, p programs, cells []disturbance, api bool, m *measured) {
	var b *testbed
	for _, d := range cells {
		t.Run(d.name, func(t *testing.T) {
			// The lab and its repair outlive the cell.
			ctx := context.WithoutCancel(t.Context())
			if b == nil {
				up, err := f.up(ctx, p, api)
				must(t, err)
				b = up
			}
			for attempt := 1; ; attempt++ {
				c := &cell{testbed: b, disturbance: d}
				wrong := c.test(t, m)
				if wrong == "" {
					return
				}
				t.Log(wrong + b.logs(c.began) + b.routes(ctx))
				repaired := b.repair(ctx)
				if repaired == nil && c.stalled > stall && attempt < attempts {
					t.Logf("this process did not run for %s: once more", round(c.stalled))
					continue
				}
				if t.Fail(); repaired != nil {
					t.Logf("the lab is built again: %v", repaired)
					broken := b
					b = nil
					must(t, broken.down())
				}
				return
			}
		})
	}
	if b != nil {
		must(t, b.down())
	}
}

const (
	// stall is how long this process may not run before its own timeouts lose requests. It is
	// client, router's observer and pods, and the machine may be busy with other things.
	stall = 300 * time.Millisecond
	// attempts is how often a cell runs that fails with such a stall.
	attempts = 3
)

// test runs the cell, and records and checks its result. It returns what is wrong.
func (c *cell) test(t *testing.T, m *measured) (wrong string) {
	want := find(c.feature, c.disturbance)
	beat := startHeartbeat()
	r, broken, err := c.run(t.Context(), want.promise)
	c.stalled = beat.stop()
	t.Log(c.disturbance.name + ": " + r.describe())
	if err != nil {
		wrong = err.Error() + "\n"
	}
	if len(broken) > 0 {
		wrong += fmt.Sprintf("not as docs/%s promises:\n%s\n", want.page, few(broken))
	}
	m.add(c.feature, c.disturbance, r, wrong == "")
	return wrong
}

// routes returns what the router knows about the address.
func (b *testbed) routes(ctx context.Context) string {
	if b.layer2 {
		return ""
	}
	text, err := b.Router.Ask(ctx, "show bgp summary", "show bgp ipv4 unicast "+b.prefix.String(),
		"show ip route "+b.prefix.String())
	if err != nil {
		return err.Error()
	}
	return text
}

// logs returns what the speakers have logged since a time.
func (b *testbed) logs(since time.Time) string {
	var text strings.Builder
	for _, n := range lab.NodeNames {
		for line := range strings.Lines(b.Speaker(n).Log()) {
			stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil && at.After(since) {
				text.WriteString(at.Format("05.000 ") + n + " " + rest)
			}
		}
	}
	return text.String()
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(m.Run())
}
