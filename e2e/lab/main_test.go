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
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A labSlot holds a lab that tests use in turn. Tests wait more than they work, so two labs
// serve them. Each test leaves its lab with running speakers and without Services.
type labSlot struct {
	up  sync.Once
	lab *Lab
	err error
}

var (
	labSlots  = []*labSlot{{}, {}, {}}
	freeSlots = make(chan *labSlot, len(labSlots))
	// binaryPath is in a directory of this test run.
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

// down removes the labs and the binary.
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

// laboratory returns a lab with running speakers and established sessions.
func laboratory(t *testing.T) *Lab {
	t.Helper()
	l := labWithoutSpeakers(t)
	await(t, built())
	await(t, l.StartSpeakers(t.Context(), NodeNames...))
	return l
}

// labWithoutSpeakers returns a lab for the exclusive use of the test, with or without
// running speakers.
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

// options returns the options of a lab for tests, with an identifier for this process.
func options(t *testing.T) Options {
	t.Helper()
	if testing.Short() {
		t.Skip("a laboratory with routers takes minutes")
	}
	if err := Missing("/usr/sbin/bird"); err != nil {
		nstest.Missing(t, err.Error())
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
