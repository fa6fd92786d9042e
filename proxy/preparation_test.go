package proxy

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
)

// While a program hangs that opens FORWARD, Set changes other addresses, and says which ones are
// not prepared; the end of it is signalled.
func TestSetDoesNotWaitForPrograms(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		dir := t.TempDir()
		hangs := filepath.Join(dir, "hangs")
		// It shows a chain that accepts, when it does not hang.
		script := "#!/bin/sh\nwhile [ -e " + hangs +
			" ]; do sleep 0.01; done\necho '*filter'; echo ':FORWARD ACCEPT [0:0]'; echo COMMIT\n"
		if err := os.WriteFile(filepath.Join(dir, "iptables-nft-save"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Setenv("PATH", dir+":"+os.Getenv("PATH")); err != nil {
			t.Fatal(err)
		}
		p := newProxy(t)
		s := proxytest.BenchState(2)
		s.Owned = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")}
		mustSet(t, p, s)
		if got := p.Unprepared(); len(got) != 0 {
			t.Errorf("after the first Set, not prepared: %v", got)
		}

		if err := os.WriteFile(hangs, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		more := netip.MustParsePrefix("198.19.0.0/24")
		s.Owned = append(slices.Clone(s.Owned), more)
		began := time.Now()
		for i := range 3 {
			s.VIPs = proxytest.WithVIPs(s.VIPs, proxytest.BenchVIP(0, i+1))
			if err := p.Set(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if got := p.Unprepared(); !slices.Equal(got, []netip.Prefix{more}) {
				t.Errorf("Set %d: not prepared: %v, want %s", i, got, more)
			}
		}
		// The program's own limit is 5 s: the kernel had all changes before.
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("three Sets took %s", took)
		}
		if err := os.Remove(hangs); err != nil {
			t.Fatal(err)
		}
		prepared(p)
		awaitChanged(t, p, "the end")
		if got := p.Unprepared(); len(got) != 0 {
			t.Errorf("at the end, not prepared: %v", got)
		}
	})
}
