package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// A result holds the measurements of one announcer.
type result struct {
	Name string
	// From the start of the program: to the first OPEN (Spoke), and to the last route at the
	// last router (Done).
	Spoke, Done measure.Sample
	// From the first OPEN to the last route at the last router.
	Converged measure.Sample
	// From the OPEN of a returned router to its last route.
	Returned measure.Sample
	// From the command that adds or removes a route to the last router that receives the
	// change.
	Added, Removed measure.Sample
	// Of one router, when all routes have arrived for the first time.
	Updates, Bytes int
	CPU            measure.Sample // from the start of the program to all routes
	// Of Fanfare: the time in passes until its router has all routes, and the CPU time of all changes.
	FirstLoad measure.Sample
	ChangeCPU time.Duration
	RSS, Peak int64 // maximum of all starts, at the end of each
}

// measureAll starts the announcers in turn, so that other load on the machine affects all
// of them.
func measureAll(ctx context.Context, o options) (r report, err error) {
	r = report{Began: time.Now(), Routes: o.routes, Routers: o.routers, Starts: o.starts}
	if r.Machine, err = measure.Describe(ctx, o.Binary, measure.FRR); err != nil {
		return r, err
	}
	r.Results = make([]result, len(announcerKinds))
	for n := range o.starts {
		for i, m := range announcerKinds {
			slog.Info("start", "number", n+1, "announcer", m.name)
			r.Results[i].Name = m.name
			if err := runOnce(ctx, o, m, &r.Results[i]); err != nil {
				return r, fmt.Errorf("%s: %w", m.name, err)
			}
		}
	}
	r.Took = time.Since(r.Began)
	return r, nil
}

// runOnce starts an announcer, measures it and ends it.
func runOnce(ctx context.Context, o options, m announcerKind, r *result) (err error) {
	w, err := newWorld(ctx, o.routers)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, w.logs())
		}
		err = errors.Join(err, w.close())
	}()
	a := m.make(o)
	if err := a.prepare(ctx, w, o.routes); err != nil {
		return err
	}
	t := &attempt{world: w, options: o, program: a, result: r}
	if m.silent {
		return t.measureSilent(ctx)
	}
	return t.measure(ctx)
}

// logs returns the ends of the programs' logs.
func (w *world) logs() (text string) {
	paths, _ := filepath.Glob(w.path("*.log"))
	for _, path := range paths {
		log, _ := os.ReadFile(path)
		text += fmt.Sprintf("the end of %s:\n%s\n", filepath.Base(path), log[max(0, len(log)-2000):])
	}
	return text
}
