package bgp

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const frrFloodConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.2 remote-as 65010
 address-family ipv4 unicast
  redistribute kernel
`

// A router that sends a node its whole table costs the node no memory, no session and
// no route in its kernel, and gets routes as any other.
func TestFRRFullTable(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		const prefixes = 100_000
		r := newFRR(t, "router", frrFloodConfig)
		r.uplink()
		var batch strings.Builder
		for addr, i := netip.MustParseAddr("11.0.0.0"), 0; i < prefixes; addr, i = addr.Next(), i+1 {
			fmt.Fprintf(&batch, "route add blackhole %s/32\n", addr)
		}
		file := filepath.Join(r.dir, "routes")
		must(t, os.WriteFile(file, []byte(batch.String()), 0o644))
		r.ns.Do(func() {
			if out, err := exec.Command("ip", "-batch", file).CombinedOutput(); err != nil {
				t.Errorf("ip -batch: %v: %s", err, out)
			}
		})
		r.run()

		s := newServer(t, Options{})
		conf := frrSession("10.0.0.2")
		conf.HoldTime = time.Minute
		set := func(prefixes ...string) {
			t.Helper()
			_, err := s.Set(t.Context(), state([]Session{conf}, routes(prefixes...)))
			must(t, err)
		}
		set("192.0.2.1/32")
		eventually(t, "route", func() bool { return r.kernel() == "192.0.2.1/32 via 10.0.0.2" })
		before := heap()
		eventually(t, "the router's whole table",
			func() bool { return r.neighbor("10.0.0.2").Families["ipv4Unicast"].Sent >= prefixes })
		set("192.0.2.1/32", "192.0.2.2/32")
		eventually(t, "another route", func() bool { return strings.Contains(r.kernel(), "192.0.2.2/32 via 10.0.0.2") })
		st := s.sessionStatus("tor1")
		t.Logf("%d UPDATEs with %d prefixes were ignored", st.IgnoredUpdates, prefixes)
		if st.Flaps != 0 || st.IgnoredUpdates < 10 {
			t.Errorf("status: %+v", st)
		}
		if after := heap(); after > before+4<<20 {
			t.Errorf("%d KiB more after %d prefixes", (after-before)>>10, prefixes)
		}
		if out, err := exec.Command("ip", "route", "show", "proto", "bgp").CombinedOutput(); err != nil ||
			len(out) != 0 {
			t.Errorf("this node's kernel has %s (%v)", out, err)
		}
	})
}
