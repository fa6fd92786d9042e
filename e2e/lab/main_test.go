package lab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/binary"
)

// The tests of this package that need a network share one lab, built by the
// first that asks for it. Each leaves it as it found it: speakers running, no
// Service.
var shared struct {
	up, build       sync.Once
	lab             *Lab
	errUp, errBuild error
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if l := shared.lab; l != nil {
		if err := errors.Join(l.Down(), os.RemoveAll(filepath.Dir(l.Binary))); err != nil {
			fmt.Fprintln(os.Stderr, "lab down:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// laboratory returns the shared lab, with speakers running and sessions up.
func laboratory(t *testing.T) *Lab {
	t.Helper()
	l := wiring(t)
	shared.build.Do(func() { shared.errBuild = build(l.Binary) })
	if shared.errBuild != nil {
		t.Fatal(shared.errBuild)
	}
	if err := l.StartSpeakers(t.Context(), NodeNames...); err != nil {
		t.Fatal(err)
	}
	return l
}

// wiring returns the shared lab without regard to speakers.
func wiring(t *testing.T) *Lab {
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
	shared.up.Do(func() { shared.lab, shared.errUp = upForTests() })
	if shared.errUp != nil {
		t.Fatal(shared.errUp)
	}
	return shared.lab
}

func upForTests() (*Lab, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "fanfare-lab-")
	if err != nil {
		return nil, err
	}
	return Up(ctx, Options{
		ID:       fmt.Sprintf("t%d", os.Getpid()),
		Topology: "../containerlab/fanfare.clab.yml",
		Objects:  "../containerlab/cluster",
		Binary:   filepath.Join(dir, "fanfare"),
		Slack:    Shared,
	})
}

func build(path string) error { return binary.Build(context.Background(), path) }

func port(a netip.Addr, p uint16) netip.AddrPort { return netip.AddrPortFrom(a, p) }
