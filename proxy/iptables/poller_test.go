package iptables

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// The poller names the sets of affinity that are full, and no others.
func TestPollerFull(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		s, err := nfnl.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		vip := &state.VIP{Addr: netip.MustParseAddr("192.0.2.1")}
		name := func(pod string) string {
			return AffinityName(vip, &state.Frontend{Port: 80, Affinity: time.Hour},
				state.Backend{Addr: netip.MustParseAddrPort(pod)})
		}
		busy, quiet := name("10.244.1.11:8080"), name("10.244.1.12:8080")
		for _, set := range []string{busy, quiet} {
			if err := createSet(s, set, setForm{affinityKind, state.SetID(0), time.Hour, maxClients, true}); err !=
				nil {
				t.Fatal(err)
			}
		}
		if err := createSet(s, "fanfare-other4", setForm{kind: "hash:ip", most: maxEntries}); err != nil {
			t.Fatal(err)
		}
		p, err := NewPoller(func(string) {}, func(string) {}, [2]*Program{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		clients := clientEntries(maxClients)
		check := func(set string, clients []setEntry, want ...string) {
			t.Helper()
			if err := changeSet(s, ipsetAdd, set, clients); err != nil {
				t.Fatal(err)
			}
			if got := p.Full(); !slices.Equal(got, want) {
				t.Errorf("full: %v, want %v", got, want)
			}
		}
		check("fanfare-other4", clients)
		check(quiet, clients[1:])
		check(busy, clients[1:])
		check(busy, clients[:1], busy)
	})
}
