package nftables

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
)

// A feature is a part of the kernel that may be excluded from the build, or be a module that cannot
// be loaded.
type feature struct {
	word   string // a word of the rules that need it
	try    string // the smallest content of a table that needs it
	config string
	module string
}

// features are the kernel features that the rules need besides nf_tables.
var features = []feature{
	{"type nat hook", "chain c { type nat hook prerouting priority -101; }", "CONFIG_NFT_NAT", "nft_chain_nat"},
	{"dnat ip to", "chain c { type nat hook prerouting priority -101; dnat ip to 192.0.2.1; }", "CONFIG_NFT_NAT",
		"nft_nat"},
	{"masquerade", "chain c { type nat hook postrouting priority 99; masquerade; }", "CONFIG_NFT_MASQ", "nft_masq"},
	{"redirect", "chain c { type nat hook prerouting priority -101; redirect; }", "CONFIG_NFT_REDIR", "nft_redir"},
	{"ct state", "chain c { type filter hook forward priority 0; ct state new; }", "CONFIG_NFT_CT", "nft_ct"},
	{"fib daddr", "chain c { type filter hook prerouting priority 0; fib daddr type local; }", "CONFIG_NFT_FIB_INET",
		"nft_fib_inet"},
	{"reject with", "chain c { type filter hook forward priority 0; reject with icmpx port-unreachable; }",
		"CONFIG_NFT_REJECT_INET", "nft_reject_inet"},
	{"numgen", "chain c { numgen random mod 2 0; }", "CONFIG_NFT_NUMGEN", "nft_numgen"},
	{"hash", "chain c { jhash ip saddr mod 2 0; }", "CONFIG_NFT_HASH", "nft_hash"},
}

// probeTable is the table for probes, which are never committed.
const probeTable = renderer.TableName + "-probe"

// Missing returns what prevents the rules from being loaded here: a program, a right, or a part of
// the kernel by its configuration option; nil if nothing does. It changes nothing in the kernel:
// nft's check is a transaction that the kernel aborts after validation (nfnetlink.c,
// NFNL_ABORT_VALIDATE). It takes some ten milliseconds.
func (n *NFT) Missing(ctx context.Context) error {
	if _, err := n.find(n.at); err != nil {
		return err
	}
	if err := nfTablesMissing(); err != nil {
		return err
	}
	err := n.check(ctx, strings.Replace(rulesetText(nil), "table inet "+renderer.TableName+" ",
		"table inet "+probeTable+" ", 1))
	if err == nil || ctx.Err() != nil || errors.Is(err, errCrashed) {
		return errors.Join(err, ctx.Err())
	}
	if missing := n.missingFeatures(ctx, usedFeatures(rulesetText(nil))); len(missing) > 0 {
		return fmt.Errorf("this kernel lacks %s, which the rules need: load what is a module, or use "+
			"a kernel that has it", enumerateFeatures(missing))
	}
	return fmt.Errorf("this kernel does not take the rules: %w", err)
}

// nfTablesMissing tries the smallest possible request.
func nfTablesMissing() error {
	s, err := nfnl.Dial()
	if err == nil {
		defer s.Close()
		_, err = s.Generation()
	}
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("to change the kernel's tables takes CAP_NET_ADMIN: %w", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("this kernel lacks CONFIG_NF_TABLES (module nf_tables): %w", err)
	}
	return err
}

func usedFeatures(rules string) (used []feature) {
	for _, f := range features {
		if strings.Contains(rules, f.word) {
			used = append(used, f)
		}
	}
	return used
}

// missingFeatures tries each feature. Most depend only on earlier ones in the list: without NAT
// chains, for example, all that needs such a chain fails, and only that is reported.
func (n *NFT) missingFeatures(ctx context.Context, all []feature) (missing []feature) {
	if n.check(ctx, probeText("")) != nil {
		return []feature{{config: "CONFIG_NF_TABLES_INET", module: "nf_tables"}}
	}
	for _, f := range all {
		if n.check(ctx, probeText(f.try)) == nil {
			continue
		}
		missing = append(missing, f)
		if f.word == features[0].word {
			break
		}
	}
	return missing
}

func probeText(body string) string { return fmt.Sprintf("table inet %s { %s; }\n", probeTable, body) }

func enumerateFeatures(all []feature) string {
	var names []string
	for _, f := range all {
		names = append(names, fmt.Sprintf("%s (module %s)", f.config, f.module))
	}
	return strings.Join(names, ", ")
}

// Explain adds to an error of nftables what is missing, if anything is.
func (n *NFT) Explain(ctx context.Context, err error) error {
	if missing := n.Missing(ctx); missing != nil {
		return fmt.Errorf("%w (%w)", missing, err)
	}
	return err
}
