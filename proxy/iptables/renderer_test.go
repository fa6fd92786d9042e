package iptables

import (
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// What an address needs is never counted too low, and its programs are counted exactly: for
// States of all kinds.
func TestEntriesCountWhatIsRendered(t *testing.T) {
	w := proxytest.NewWorld(11)
	s := state.State{Node: "n1"}
	for range 300 {
		s = w.Next(s)
		for v := range s.VIPs.All() {
			chains := make(chainSet)
			render{node: s.Node, mark: defaultFlag}.vip(chains, v)
			rules, programs := 0, 0
			for _, all := range chains {
				rules += len(all)
				for _, r := range all {
					if strings.Contains(r, "--bytecode") {
						programs++
					}
				}
			}
			one := state.State{Node: s.Node, VIPs: proxytest.VIPsOf(v)}
			if rules > v.Entries(state.ModeIPTables) {
				t.Fatalf("%d entries for %d rules of\n%s", v.Entries(state.ModeIPTables), rules, one)
			}
			if programs != v.Programs() {
				t.Fatalf("%d programs counted, %d in the rules of\n%s", v.Programs(), programs, one)
			}
		}
	}
}
