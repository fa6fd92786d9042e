package proxy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
)

// A lab is the network of proxytest, and what only tests of this package do in it.
type lab struct{ *proxytest.Lab }

func newLab(t *testing.T) *lab {
	t.Helper()
	return &lab{proxytest.NewLab(t)}
}

// flows lists the conntrack entries of the node to an address.
func (l *lab) flows(vip netip.Addr) []conntrack.Flow {
	l.T.Helper()
	s, err := nfnl.Dial()
	if err != nil {
		l.T.Fatal(err)
	}
	defer s.Close()
	all, err := conntrack.ListFlows(s, conntrack.RequestOf(slices.Values([]netip.Addr{vip})),
		func(f *conntrack.Flow) bool { return f.VIP == vip })
	if err != nil {
		l.T.Fatal(err)
	}
	return all
}
