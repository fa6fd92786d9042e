package proxy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/proxy/renderer"
)

// The tables are repaired when another program deletes them, taken over and removed.
func TestRedirectTables(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		s := newSegment(t)
		node := s.nodes[0]
		s.set(0, true)
		listed := listRules(t, node)
		if strings.Count(listed, " "+renderer.RedirectTable+" {") != 2 {
			t.Fatalf("no tables:\n%s", listed)
		}
		nftables(t, "delete table ip "+renderer.RedirectTable)
		s.proxy[0].Recheck()
		s.set(0, true)
		if got := listRules(t, node); got != listed {
			t.Errorf("not mended:\n%s", got)
		}
		s.via = 77
		s.set(0, true)
		if got, want := listRules(t, node), strings.NewReplacer("10.9.0.2", "10.9.0.77", "fd00:9::2", "fd00:9::4d").Replace(listed); got != want {
			t.Errorf("another node:\n%s", got)
		}
		s.via = 0
		s.set(0, true)
		nftables(t, "add element ip6 "+renderer.RedirectTable+` via { fd00:9::101 . "eth0" : fd00:9::2 }`)
		if err := s.proxy[0].Close(); err != nil {
			t.Fatal(err)
		}
		s.proxy[0] = newProxy(t)
		s.set(0, true)
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

func TestValidateRedirects(t *testing.T) {
	good := Redirect{VIP: on("vip", 0), Interface: "eth0", Via: on("a", 0)}
	with := func(change func(*Redirect)) []Redirect {
		h := good
		change(&h)
		return []Redirect{h}
	}
	for _, c := range []struct {
		name string
		all  []Redirect
		want string
	}{
		{"good", []Redirect{good}, ""},
		{"family", with(func(h *Redirect) { h.Via = on("a", 1) }), "same family"},
		{"no address", with(func(h *Redirect) { h.VIP = netip.Addr{} }), "unicast"},
		{"quote", with(func(h *Redirect) { h.Interface = `eth"` }), "interface"},
		{"all interfaces", with(func(h *Redirect) { h.Interface = "eth+" }), "interface"},
		{"twice", []Redirect{good, good}, "no two alike"},
	} {
		err := State{Redirects: c.all}.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
}
