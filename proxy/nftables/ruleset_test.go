package nftables

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// The text that replaces a table means to nft what the elements mean by netlink.
func TestReplaceScript(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		s, err := nfnl.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		w := proxytest.NewWorld(11)
		random := state.State{Node: "n1"}
		states := proxytest.GoldenStates()
		for i := range 10 {
			random = w.Next(random)
			states[string(rune('a'+i))] = random
		}
		for name, one := range states {
			all := state.RenderState(one)
			check := exec.Command("nft", "--check", "--file", "-")
			check.Stdin = strings.NewReader(Script(all))
			if out, err := check.CombinedOutput(); err != nil {
				t.Fatalf("%s: nft --check: %v\n%s", name, err, out)
			}
			if err := newNFT(t).load(t.Context(), Script(all)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got, err := readStructure(s)
			if err == nil {
				err = got.readElements(s, true) // it lacks the schema's chain, which comes last
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(proxytest.ElementsText(all), proxytest.ElementsText(got.elements)); diff != "" {
				t.Errorf("%s (-want +got)\n%s", name, diff)
			}
			if damaged := got.damagedChains(); len(damaged) > 0 {
				t.Errorf("%s: chains by nft differ from their patterns: %v", name, damaged)
			}
		}
	})
}

// nft lists what netlink wrote in the words of the golden files, so that an
// operator can compare.
func TestListedByNft(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		k := newKernel(t)
		s := proxytest.GoldenStates()["cluster"]
		s.Clients = proxytest.GoldenStates()["shared"].Clients
		k.set(s)
		out, err := exec.Command("nft", "list", "table", "inet", renderer.TableName).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, want := range []string{
			`192.0.2.1 . tcp . 80 : 10:3`,
			`10:3 : goto x3`,
			`192.0.2.1 . tcp . 80 . 2 : 10.244.2.11 . 8080`,
			`192.0.2.1 . tcp . 80 . 10.244.2.11 . 8080`,
			`192.0.2.1 . 10.244.1.11 . 10.244.1.11`,
			`"cali*"`,
			`10.244.1.0/24`,
			`dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @xeps4`,
			`dnat ip6 to ip6 daddr . meta l4proto . th dport . numgen random mod 3 map @ieps6`,
		} {
			if !strings.Contains(string(out), want) {
				t.Errorf("nft does not list %s", want)
			}
		}
		if t.Failed() {
			t.Logf("%s", out)
		}
	})
}
