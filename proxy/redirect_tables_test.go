package proxy

import (
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
)

// The tables are repaired when another program deletes them, taken over and removed.
func TestRedirectTables(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		s := newSegment(t, 2)
		node := s.nodes[0]
		s.set(0, "b", "b")
		listed := listRules(t, node)
		if strings.Count(listed, " "+renderer.RedirectTable+" {") != 2 {
			t.Fatalf("no tables:\n%s", listed)
		}
		proxytest.NFT(t, "delete table ip "+renderer.RedirectTable)
		s.proxy[0].Recheck()
		s.set(0, "b", "b")
		if got := listRules(t, node); got != listed {
			t.Errorf("not mended:\n%s", got)
		}
		s.set(0, "absent", "absent")
		if got, want := listRules(t, node), strings.NewReplacer("10.9.0.2", "10.9.0.77", "fd00:9::2",
			"fd00:9::4d").Replace(listed); got != want {
			t.Errorf("another node:\n%s", got)
		}
		s.set(0, "b", "b")
		proxytest.NFT(t, "add element ip6 "+renderer.RedirectTable+` via { fd00:9::101 . "eth0" : fd00:9::2 }`)
		if err := s.proxy[0].Close(); err != nil {
			t.Fatal(err)
		}
		s.proxy[0] = newProxy(t)
		s.set(0, "b", "b")
		if got := listRules(t, node); got != listed {
			t.Errorf("what another process left:\n%s", got)
		}
		if err := Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := listRules(t, node); got != "" {
			t.Errorf("left behind:\n%s", got)
		}
	})
}
