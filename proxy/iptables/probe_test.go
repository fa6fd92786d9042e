package iptables

import (
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/proxytest"
)

// A kernel that lacks something is asked rule by rule, and the answer has the names
// by which it can be had.
func TestModeSaysWhatIsMissing(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		i := Program{Name: "iptables-nft"}
		if err := i.lacks(0); err == nil || !strings.Contains(err.Error(), "CONFIG_NETFILTER_XT_SET") || strings.Contains(err.Error(), "CONFIG_NETFILTER_XT_NAT") {
			// The rules about a set need the set, which is not made here.
			t.Errorf("%v; want it to name the match set alone", err)
		}
		if save, err := i.saveAll(t.Context()); err != nil || strings.Contains(save, probeChain) {
			t.Errorf("a trace of the search: %v\n%s", err, save)
		}
	})
}
