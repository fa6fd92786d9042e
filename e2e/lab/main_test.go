package lab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/binary"
)

// The tests of this package that need a network have a lab each for as long as they
// run: one of two, built by the first that gets it. They wait more than they work, for
// routers and for time to pass. Each leaves it as it found it: speakers running, no
// Service.
type labSlot struct {
	up  sync.Once
	lab *Lab
	err error
}

var (
	labSlots  = []*labSlot{{}, {}}
	freeSlots = make(chan *labSlot, len(labSlots))
	// binaryPath is in a directory of this run's own.
	binaryPath = sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", "fanfare-lab-")
		return filepath.Join(dir, "fanfare"), err
	})
	built = sync.OnceValue(func() error {
		path, err := binaryPath()
		if err != nil {
			return err
		}
		return binary.Build(context.Background(), path)
	})
)

func TestMain(m *testing.M) {
	flag.Parse()
	for _, p := range labSlots {
		freeSlots <- p
	}
	code := m.Run()
	if err := down(); err != nil {
		fmt.Fprintln(os.Stderr, "lab down:", err)
		code = 1
	}
	os.Exit(code)
}

// down removes what was built.
func down() error {
	path, err := binaryPath()
	errs := []error{err}
	for _, p := range labSlots {
		if p.lab != nil {
			errs = append(errs, p.lab.Down())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(filepath.Dir(path)))...)
}

// laboratory returns a lab, with speakers running and sessions up.
func laboratory(t *testing.T) *Lab {
	t.Helper()
	l := labWithoutSpeakers(t)
	await(t, built())
	await(t, l.StartSpeakers(t.Context(), NodeNames...))
	return l
}

// wiring returns a lab without regard to speakers, which is the test's own until it
// ends.
func labWithoutSpeakers(t *testing.T) *Lab {
	t.Helper()
	with := options(t)
	t.Parallel()
	p := <-freeSlots
	t.Cleanup(func() { freeSlots <- p })
	p.up.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		with.ID += string(rune('a' + slices.Index(labSlots, p)))
		p.lab, p.err = Up(ctx, with)
	})
	await(t, p.err)
	return p.lab
}

// options are those of a lab for tests, which may be no other's at the time.
func options(t *testing.T) Options {
	t.Helper()
	if testing.Short() {
		t.Skip("needs minutes")
	}
	if err := Missing("/usr/sbin/bird"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	path, err := binaryPath()
	await(t, err)
	return Options{
		ID:       fmt.Sprintf("t%d", os.Getpid()),
		Topology: "../containerlab/fanfare.clab.yml",
		Objects:  "../containerlab/cluster",
		Binary:   path,
		Slack:    Shared,
	}
}

func port(a netip.Addr, p uint16) netip.AddrPort { return netip.AddrPortFrom(a, p) }
