package proxy

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// What nft lists it can load again, as systems do that keep their rules in a file: a
// single line that it refused would cost a machine all of its rules.
func TestListingCanBeLoaded(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		s := listedState()
		mustSet(t, p, s)
		listed := proxytest.NFTSays(t, "list", "table", "inet", renderer.TableName)
		file := filepath.Join(t.TempDir(), "nftables.conf")
		if err := os.WriteFile(file, []byte(listed), 0o600); err != nil {
			t.Fatal(err)
		}
		elsewhere := nstest.New(t, "elsewhere")
		elsewhere.Do(func() {
			proxytest.NFTSays(t, "-f", file)
			if diff := cmp.Diff(listed, proxytest.NFTSays(t, "list", "table", "inet", renderer.TableName)); diff != "" {
				t.Errorf("loaded and listed again (-want +got)\n%s", diff)
			}
			// The kernel has the very same rules: a process takes it for its own.
			q := newProxy(t)
			mustSet(t, q, s)
			checkKernel(t, s)
			if got := q.Status().Generation; got != 0 {
				t.Errorf("%d transactions; want none", got)
			}
		})
	})
}

// listedState has everything that makes an element or a chain, but for affinity over
// IPv6: nft 1.0.6 aborts when it reads the rules for that.
func listedState() State {
	s := proxytest.PacketState(LocalClients{
		CIDRs: proxytest.Prefixes("10.244.1.0/24", "fd00:244:1::/64"), InterfacePrefix: "cali", Bridge: "cni0",
	})
	s.SNAT = proxytest.GoldenStates()["snat"].SNAT
	schedulers := []Scheduler{Random, RoundRobin, SourceHash, Maglev}
	for v := range s.VIPs.All() {
		for i := range v.Frontends {
			fe := &v.Frontends[i]
			fe.Scheduler = schedulers[i%len(schedulers)]
			if i%3 == 0 {
				fe.Sources = proxytest.Prefixes("10.0.0.0/8", "fd00::/8")
			}
			if i%2 == 0 && v.Addr.Is4() {
				fe.Affinity = 3 * time.Hour
			}
		}
		f := state.Family(v.Addr)
		many := proxytest.Backends(f, "pod1", "pod2", "pod3", "remote")
		many[0].Weight = 3
		v.Frontends[0].External = Target{Backends: many, Remote: Masquerade}
		v.Frontends[3].Draining = drained(&v.Frontends[0])
	}
	return s
}
