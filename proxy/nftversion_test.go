package proxy

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Beside a table that crashes the only nft, the mode auto is iptables; with a newer nft beside it, it is nftables.
func TestModeWhereNftCrashes(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		programs := proxytest.NFTPrograms(t, "..")
		older, newer := []string{programs["1.0.6"]}, []string{programs["1.1.3"]}
		load := func(script string) {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), newer[0], "-f", "-")
			cmd.Stdin = strings.NewReader(script)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		load(proxytest.KubeProxyTable)
		s := scheduleState(Random, podBackends("pod1"), 80)
		answers := func(p *Proxy) {
			t.Helper()
			mustSet(t, p, s)
			for family := range state.SetID(2) {
				if got := l.who(l.Client, "tcp", 0,
					netip.AddrPortFrom(proxytest.At("vip", family), 80)); got != "pod1" {
					t.Errorf("family %d: %s answers, want pod1", family, got)
				}
			}
		}
		for _, tt := range []struct {
			nft  [][]string
			mode Mode
			says string
		}{
			{[][]string{older}, ModeIPTables, "nft crashed"},
			{[][]string{older, newer}, ModeNFTables, "the speaker uses nft 1.1.3"},
		} {
			p, err := New(t.Context(), Options{NFT: tt.nft})
			if err != nil {
				t.Fatal(err)
			}
			answers(p)
			if tt.mode == ModeNFTables {
				load("delete table inet fanfare")
				p.Recheck()
				answers(p)
			}
			if st := p.Status(); st.Mode != tt.mode || !strings.Contains(st.ModeReason+st.NFTReason, tt.says) {
				t.Errorf("%s, because %q and %q; want %s, because %s", st.Mode, st.ModeReason, st.NFTReason, tt.mode,
					tt.says)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
