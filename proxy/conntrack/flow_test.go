package conntrack

import (
	"net/netip"
	"os"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// What the kernel is asked to list holds all that may be stale.
func TestListFlows(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := proxytest.NewLab(t)
		proxytest.NFT(t, `table inet nat { chain prerouting { type nat hook prerouting priority dstnat;
			ip daddr 192.0.2.1 meta l4proto tcp dnat ip to 10.244.1.11:8080
			ip6 daddr 2001:db8::1 meta l4proto tcp dnat ip6 to [fd00:244:1::11]:8080
		}; }`)
		sock, err := nfnl.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer sock.Close()
		for family := range state.SetID(2) {
			vip, other := proxytest.At("vip", family), proxytest.At("other", family)
			l.ProbeFrom(l.Client, "tcp", 4444, netip.AddrPortFrom(other, 80), "silence")
			if got := l.Probe(l.Client, "tcp", netip.AddrPortFrom(vip, 80), ""); got != "pod1 saw client" {
				t.Fatal(got)
			}
			pod := proxytest.Backends(family, "pod1")[0].Addr
			gone := &staleAtVIP{removedBackends: map[removedBackend]state.Sides{
				{Port: state.Port{Proto: state.TCP, Port: 80}, Backend: pod}: state.SideExternal}}
			for _, tc := range []struct {
				p                        StaleEntries
				untranslated, translated bool // must be listed
			}{
				{StaleEntries{other: {newVIP: true}}, true, false},
				{StaleEntries{vip: gone}, false, true},
				{StaleEntries{vip: gone, other: {newVIP: true}}, true, true},
			} {
				var untranslated, translated bool
				_, err := ListFlows(sock, tc.p.request(), func(f *Flow) bool {
					untranslated = untranslated || f.VIP == other && !f.DNAT
					translated = translated || f.VIP == vip && f.DNAT && f.Backend == pod
					return false
				})
				if err != nil {
					t.Fatal(err)
				}
				if tc.untranslated && !untranslated || tc.translated && !translated {
					t.Errorf("%s: untranslated listed %v, translated %v", staleText(tc.p), untranslated, translated)
				}
			}
		}
	})
}
