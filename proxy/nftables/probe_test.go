package nftables

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// What the rules need is here, and to ask leaves nothing behind: no table, no
// notification, and the node's own table as it was.
func TestNothingIsMissing(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		k := newKernel(t)
		s := proxytest.PacketState(state.LocalClients{})
		k.set(s)
		before := generationNow(t)
		if err := k.NFT.Missing(t.Context()); err != nil {
			t.Error(err)
		}
		for _, f := range features {
			if err := k.NFT.check(t.Context(), probeText(f.try)); err != nil {
				t.Errorf("%s: %v", f.config, err)
			}
		}
		if after := generationNow(t); after != before {
			t.Errorf("generation %d after, %d before", after, before)
		}
		tables, err := exec.Command("nft", "list", "tables").Output()
		if got := strings.TrimSpace(string(tables)); got != "table inet fanfare" || err != nil {
			t.Errorf("tables %q, %v", got, err)
		}
		k.check()
	})
}

func generationNow(t *testing.T) uint32 {
	t.Helper()
	s, err := nfnl.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	g, err := s.Generation()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// A kernel that has not got what a rule needs is asked until its name is known.
// The device is on no machine, whether or not the kernel has flowtables; the
// feature before it is there.
func TestMissingFeature(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		none := feature{"flow", "flowtable f { hook ingress priority 0; devices = { nosuch }; }", "CONFIG_NONE", "none"}
		got := enumerateFeatures(newNFT(t).missingFeatures(t.Context(), []feature{features[1], none}))
		if want := "CONFIG_NONE (module none)"; got != want {
			t.Errorf("missing %q, want %q", got, want)
		}
	})
}

// Without the program or the right, that is what is said.
func TestMissingProgramOrRight(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		path := os.Getenv("PATH")
		t.Cleanup(func() { os.Setenv("PATH", path) })
		if err := os.Setenv("PATH", t.TempDir()); err != nil {
			t.Fatal(err)
		}
		if err := newNFT(t).Missing(t.Context()); err == nil || !strings.Contains(err.Error(), "no program nft") {
			t.Errorf("without nft: %v", err)
		}
		if err := os.Setenv("PATH", path); err != nil {
			t.Fatal(err)
		}
		proxytest.WithoutRights(t)
		err := newNFT(t).Missing(t.Context())
		if err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("without rights: %v", err)
		}
	})
}

// The rules may use words that no feature stands for; then no message could name what
// is missing. What is known to be optional in a kernel is listed here.
func TestFeaturesAreOfTheRules(t *testing.T) {
	used := usedFeatures(rulesetText(nil))
	for _, must := range []string{"CONFIG_NFT_NAT", "CONFIG_NFT_MASQ", "CONFIG_NFT_REDIR", "CONFIG_NFT_CT",
		"CONFIG_NFT_FIB_INET", "CONFIG_NFT_REJECT_INET", "CONFIG_NFT_NUMGEN"} {
		if !strings.Contains(enumerateFeatures(used), must) {
			t.Errorf("no rule is known to need %s", must)
		}
	}
	if got := usedFeatures("table inet t { chain c { ct state new; } }"); len(got) != 1 ||
		got[0].config != "CONFIG_NFT_CT" {
		t.Errorf("features of one rule: %v", got)
	}
}
