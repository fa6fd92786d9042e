package obstacle

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
)

// Other programs change rules all the time: only a change that may be an obstacle
// is worth a look.
func TestMonitorConcerns(t *testing.T) {
	message := func(family uint8, table string, attribute uint16, chain string, hook bool) []byte {
		e := nfnl.Encoder{B: []byte{family, 0, 0, 0}}
		e.Text(unix.NFTA_TABLE_NAME, table)
		e.Text(attribute, chain)
		if hook {
			e.Close(e.Open(unix.NFTA_CHAIN_HOOK))
		}
		return e.B
	}
	rule := func(family uint8, table, chain string) []byte {
		return message(family, table, unix.NFTA_RULE_CHAIN, chain, false)
	}
	for _, tt := range []struct {
		what string
		kind uint8
		data []byte
		want bool
	}{
		{"a rule of another program", unix.NFT_MSG_NEWRULE, rule(unix.NFPROTO_IPV4, "filter", "FORWARD"), true},
		{"one less", unix.NFT_MSG_DELRULE, rule(unix.NFPROTO_IPV4, "filter", "FORWARD"), true},
		{"one of a kube-proxy with iptables-nft", unix.NFT_MSG_NEWRULE, rule(unix.NFPROTO_IPV4, "filter", "KUBE-SEP-X"),
			false},
		{"our own there", unix.NFT_MSG_NEWRULE, rule(unix.NFPROTO_IPV6, "filter", "FAN-X"), false},
		{"a new chain at a hook", unix.NFT_MSG_NEWCHAIN,
			message(unix.NFPROTO_INET, "mine", unix.NFTA_CHAIN_NAME, "fwd", true), true},
		{"a new chain elsewhere", unix.NFT_MSG_NEWCHAIN,
			message(unix.NFPROTO_INET, "mine", unix.NFTA_CHAIN_NAME, "fwd", false), false},
		{"a chain that goes", unix.NFT_MSG_DELCHAIN,
			message(unix.NFPROTO_IPV4, "filter", unix.NFTA_CHAIN_NAME, "FORWARD", false), true},
		{"kube-proxy begins", unix.NFT_MSG_NEWCHAIN,
			message(unix.NFPROTO_IPV4, "kube-proxy", unix.NFTA_CHAIN_NAME, "nat-prerouting", true), true},
		{"kube-proxy's chain for a Service", unix.NFT_MSG_NEWCHAIN,
			message(unix.NFPROTO_IPV4, "kube-proxy", unix.NFTA_CHAIN_NAME, "service-X", false), false},
		{"its rule", unix.NFT_MSG_NEWRULE, rule(unix.NFPROTO_IPV4, "kube-proxy", "service-X"), false},
		{"our own table", unix.NFT_MSG_NEWCHAIN,
			message(unix.NFPROTO_INET, renderer.TableName, unix.NFTA_CHAIN_NAME, "filter-forward", true), false},
		{"a family without our hooks", unix.NFT_MSG_NEWCHAIN,
			message(unix.NFPROTO_ARP, "mine", unix.NFTA_CHAIN_NAME, "in", true), false},
		{"an element", unix.NFT_MSG_NEWSETELEM, rule(unix.NFPROTO_IPV4, "filter", "FORWARD"), false},
		{"nothing", unix.NFT_MSG_NEWRULE, nil, false},
	} {
		if got := concerns(tt.kind, tt.data); got != tt.want {
			t.Errorf("%s: %t", tt.what, got)
		}
	}
}

// Looks are rare, also while other programs change rules all the time. An address that waits for one
// is announced late, and waits no longer than the share of the time demands.
func TestMonitorPause(t *testing.T) {
	for _, tt := range []struct {
		took    time.Duration // by the last look
		waiting bool
		want    time.Duration
	}{
		{0, false, time.Second},
		{0, true, 0}, // before the first look
		{5 * time.Millisecond, false, time.Second},
		{5 * time.Millisecond, true, 100 * time.Millisecond},
		{100 * time.Millisecond, false, 2 * time.Second},
		{100 * time.Millisecond, true, 2 * time.Second},
	} {
		var l Monitor
		if tt.waiting {
			l.waiting = make(chan struct{})
		}
		if got := l.pause(tt.took); got != tt.want {
			t.Errorf("pause after a look of %v, an address waits: %t: %v, want %v", tt.took, tt.waiting, got, tt.want)
		}
	}
}
