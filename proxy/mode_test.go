package proxy

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/fastpath"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
)

// testMode is the mode of the Proxies that a test makes. A test in a namespace
// is a process of its own.
var testMode = ModeNFTables

// backends of iptables, one of which a node may have alone.
var xtBackends = []string{"iptables-nft", "iptables-legacy"}

// onEach runs a test of what packets meet with each renderer, in a namespace of its
// own.
func onEach(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel() // Else one of three that is slow holds up all other tests.
	t.Run("nftables", func(t *testing.T) { proxytest.InNamespace(t, f) })
	onBackends(t, f)
}

// testFast is where the Proxies of a test keep their fast path; empty: they have none.
var testFast string

// onFastPath runs a test with a fast path before the rules of nftables.
func onFastPath(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Run("fast path", func(t *testing.T) {
		proxytest.InNamespace(t, func(t *testing.T) {
			testFast = filepath.Join(nstest.BPF(t), "fanfare")
			f(t)
		})
	})
}

// onAll is onEach, and onFastPath.
func onAll(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	onEach(t, f)
	onFastPath(t, f)
}

// withFastPath runs a test with nftables, without and with a fast path before them.
func withFastPath(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Run("nftables", func(t *testing.T) { proxytest.InNamespace(t, f) })
	onFastPath(t, f)
}

// openFast opens the fast path of a test that has one.
func openFast(log *slog.Logger) OpenFastPath { return openFastOf("", log) }

// openFastOf opens that of one of several nodes.
func openFastOf(node string, log *slog.Logger) OpenFastPath {
	if testFast == "" {
		return nil
	}
	return func(ctx context.Context, ended func([]fastpath.Flow)) (FastPath, error) {
		return fastpath.New(ctx, fastpath.Options{Dir: testFast + node, Flows: 4096, Log: log, Ended: ended})
	}
}

// onIPTables runs a test with each iptables, on a machine that has no other.
func onIPTables(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	onBackends(t, f)
}

func onBackends(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	for _, backend := range xtBackends {
		t.Run(backend, func(t *testing.T) {
			proxytest.InNamespace(t, func(t *testing.T) {
				onlyPrograms(t, backend)
				testMode = ModeIPTables
				f(t)
			})
		})
	}
}

// onlyPrograms leaves this process the programs of one iptables, and nft for what
// tests do with it. Without a backend it leaves none.
func onlyPrograms(t testing.TB, backend string) {
	t.Helper()
	if err := os.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "xtables.lock")); err != nil {
		t.Fatal(err)
	}
	if backend == "iptables-legacy" {
		legacyOrSkip(t)
	}
	names := []string{"nft"}
	for _, family := range []string{"", strings.Replace(backend, "ip", "ip6", 1)} {
		for _, part := range []string{"", "-save", "-restore"} {
			if backend != "" {
				names = append(names, strings.TrimSpace(orElse(family, backend)+part))
			}
		}
	}
	keepPrograms(t, names...)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// keepPrograms leaves this process programs by name, and no others.
func keepPrograms(t testing.TB, names ...string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			nstest.Missing(t, err.Error())
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Setenv("PATH", dir); err != nil {
		t.Fatal(err)
	}
}

// xtCount is how many packets of both families matched rules that begin so.
func xtCount(t *testing.T, rule string) (n int) {
	t.Helper()
	for _, i := range iptables.Installed() {
		save, err := exec.Command(i.Name+"-save", "-c").Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(save)) {
			counts, line, _ := strings.Cut(line, " ")
			packets, _, _ := strings.Cut(strings.TrimPrefix(counts, "["), ":")
			if one, err := strconv.Atoi(packets); err == nil && strings.HasPrefix(line, rule) {
				n += one
			}
		}
	}
	return n
}
