package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// redirectTable is the name of the tables, one for each family, that redirect connections;
// each exists as long as there is any. The statement dup, which sends a packet to another
// host, does not exist in the family inet. The name stays, so that a new version replaces
// the tables of an older one.
const redirectTable = tableName + "-handon"

// redirectText is such a table without elements.
//
// An invalid packet has no entry, or does not fit its entry. The latter may be an
// open connection's, and the other node, which does not know that one, would refuse it. But FIN and RST
// without an entry are invalid there as well, and vanish; here they may be the first
// packet of a connection after it was moved.
const redirectText = `table %[1]s %[2]s {
	comment "Fanfare: managed, do not edit"

	set nodes { type ether_addr; comment "other nodes, which redirect what they do not know"; }
	map via { typeof %[1]s daddr . iifname : %[1]s daddr; comment "VIP . interface : node that had it before"; }

	# What another node has redirected goes no further.
	chain unknown {
		ether saddr @nodes return
		dup to %[1]s daddr . iifname map @via device iif counter drop
	}

	chain prerouting {
		type filter hook prerouting priority -102; policy accept;
		meta l4proto != tcp accept
		ct state established,related accept
		tcp flags & (fin|syn|rst|ack) == syn accept
		ct state new goto unknown
		ct state invalid tcp flags & (fin|rst) != 0 goto unknown
	}
}
`

// redirectFamilies are what nft calls the families.
var redirectFamilies = [2]string{"ip", "ip6"}

// redirectTables are what an nftRenderer knows of the tables that redirect connections.
type redirectTables struct {
	known bool // the tables are as said here
	have  State
	// listing is how nft shows them.
	listing string
	// tried is what failed with err at a time: a kernel that cannot do it is not asked with
	// every Set.
	tried State
	err   error
	at    time.Time
}

// redirect writes the redirects of a State. look compares with the kernel first.
//
// Elements are changed one by one where a table is there: a packet that is in the chain
// while another takes its place would find the old map empty, and be refused.
func (n *nftRenderer) redirect(ctx context.Context, want State, look bool) error {
	r := &n.redirects
	if r.err != nil && state.SameRedirects(r.tried, want) && time.Since(r.at) < forwardRetry {
		return r.err
	}
	r.err = r.write(ctx, want, look)
	r.tried, r.at = State{Redirects: want.Redirects, Nodes: want.Nodes}, time.Now()
	return r.err
}

func (r *redirectTables) write(ctx context.Context, want State, look bool) error {
	if look && r.known && len(r.have.Redirects) > 0 {
		r.known = listRedirects(ctx, r.have) == r.listing
	}
	if r.known && state.SameRedirects(r.have, want) {
		return nil
	}
	var script strings.Builder
	for f := range state.SetID(2) {
		had, has := state.RedirectsOf(r.have.Redirects, f), state.RedirectsOf(want.Redirects, f)
		switch {
		case len(has) == 0:
			if len(had) > 0 || !r.known {
				if err := deleteTableOf(nfFamily(f), redirectTable); err != nil {
					return err
				}
			}
		case !r.known || len(had) == 0:
			fmt.Fprintf(&script, "add table %[1]s %[2]s\ndelete table %[1]s %[2]s\n"+redirectText, redirectFamilies[f], redirectTable)
			redirectElements(&script, f, State{}, want)
		default:
			redirectElements(&script, f, r.have, want)
		}
	}
	r.known = false
	if script.Len() > 0 {
		if err := nft(ctx, script.String()); err != nil {
			return err
		}
	}
	r.known, r.have = true, State{Redirects: want.Redirects, Nodes: want.Nodes}
	r.listing = listRedirects(ctx, r.have)
	return nil
}

// redirectElements writes what turns the elements of have into those of want.
func redirectElements(b *strings.Builder, f state.SetID, have, want State) {
	via := func(h Redirect) string { return fmt.Sprintf("%s . %q : %s", h.VIP, h.Interface, h.Via) }
	change := func(verb, set string, all []string) {
		if len(all) > 0 {
			fmt.Fprintf(b, "%s element %s %s %s { %s }\n", verb, redirectFamilies[f], redirectTable, set, strings.Join(all, ", "))
		}
	}
	text := func(m MAC) string { return m.String() }
	change("delete", "via", lacking(state.RedirectsOf(have.Redirects, f), state.RedirectsOf(want.Redirects, f), via))
	change("add", "via", lacking(state.RedirectsOf(want.Redirects, f), state.RedirectsOf(have.Redirects, f), via))
	change("delete", "nodes", lacking(have.Nodes, want.Nodes, text))
	change("add", "nodes", lacking(want.Nodes, have.Nodes, text))
}

// lacking are the texts of those of all that are not in of.
func lacking[T comparable](all, of []T, text func(T) string) (out []string) {
	in := make(map[T]bool, len(of))
	for _, t := range of {
		in[t] = true
	}
	for _, t := range all {
		if !in[t] {
			out = append(out, text(t))
		}
	}
	return out
}

// listRedirects is how nft shows the tables for a State, without what they counted. It is
// empty for one that is not there.
func listRedirects(ctx context.Context, s State) (listing string) {
	for f := range state.SetID(2) {
		if len(state.RedirectsOf(s.Redirects, f)) == 0 {
			continue
		}
		out, err := exec.CommandContext(ctx, "nft", "--stateless", "list", "table", redirectFamilies[f], redirectTable).Output()
		if err != nil {
			return ""
		}
		listing += string(out)
	}
	return listing
}

// deleteRedirects removes the tables.
func deleteRedirects() error {
	return errors.Join(deleteTableOf(unix.NFPROTO_IPV4, redirectTable), deleteTableOf(unix.NFPROTO_IPV6, redirectTable))
}

// redirect returns what the rules cannot do: they are written with all others.
func (x *xtRenderer) redirect(_ context.Context, want State, _ bool) error {
	for f := range state.SetID(2) {
		if len(state.RedirectsOf(want.Redirects, f)) > 0 && x.teeErr[f] != nil {
			return x.teeErr[f]
		}
	}
	return nil
}

// able is s without the redirects that iptables cannot do here.
func (x *xtRenderer) able(s State) State {
	s.Redirects = slices.DeleteFunc(slices.Clone(s.Redirects), func(h Redirect) bool { return x.teeErr[state.Family(h.VIP)] != nil })
	return s
}

// xtTee is the rule that redirects, to try whether the kernel takes it.
func xtTee(f state.SetID) xtFeature {
	return xtFeature{"mangle", "-j TEE --gateway " + [2]string{"192.0.2.1", "2001:db8::1"}[f], "CONFIG_NETFILTER_XT_TARGET_TEE"}
}

// xtRedirects are the rules of FANFARE-HANDON, which has the packets of TCP for the VIPs that
// have connections elsewhere.
func xtRedirects(s State, f state.SetID) []string {
	all := state.RedirectsOf(s.Redirects, f)
	if len(all) == 0 {
		return nil
	}
	rules := []string{
		"-m conntrack ! --ctstate INVALID,NEW -j RETURN",
		"-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j RETURN",
		"-p tcp -m conntrack --ctstate INVALID -m tcp --tcp-flags FIN,RST NONE -j RETURN",
	}
	for _, m := range s.Nodes {
		rules = append(rules, "-m mac --mac-source "+m.String()+" -j RETURN")
	}
	for _, h := range all {
		match := fmt.Sprintf("-d %s -i %s -j ", netip.PrefixFrom(h.VIP, h.VIP.BitLen()), h.Interface)
		rules = append(rules, match+"TEE --gateway "+h.Via.String()+" --oif "+h.Interface, match+"DROP")
	}
	return rules
}

// xtRedirected lets copies leave: they pass OUTPUT, with the client's source.
func xtRedirected(s State, f state.SetID) []string {
	if len(state.RedirectsOf(s.Redirects, f)) == 0 {
		return nil
	}
	return []string{"-m conntrack --ctstate UNTRACKED -m addrtype ! --src-type LOCAL -j RETURN"}
}

// redirect writes the redirects of what was set. Its failure does not fail Set: connections
// that are not redirected are refused, and the rules work.
func (p *Proxy) redirect(ctx context.Context, want State, look bool) {
	err := p.renderer.redirect(ctx, want, look)
	if before := p.record.redirect(err); err != nil && before != err.Error() {
		p.log.WarnContext(ctx, "connections to addresses that move to this node cannot be redirected to the previous owner", "err", err)
	}
	if err != nil {
		return
	}
	if err := p.forgetEnded(ctx, want); err != nil {
		p.metrics.flowErrors.Inc()
		p.log.WarnContext(ctx, "connections to addresses that move to this node may be taken for earlier ones", "err", err)
	}
}

// forgetEnded deletes what conntrack and the fast path remember of connections to VIPs that
// have ended, once for each VIP that this node takes from another one.
//
// It is not left to the sweeper: packets of connections that began elsewhere with the same clients'
// ports may come as soon as Set returns, and packets that fit an ended one would be sent to
// its backend, which resets them. Nor is it done when the node answers already, as when
// it learns only then which node did before: a client may have begun another connection by the port of
// an ended one since that was listed, and would lose it (see deleteAll).
//
// What fails is tried by the next Set.
func (p *Proxy) forgetEnded(ctx context.Context, want State) error {
	taken, fresh := make(map[netip.Addr]bool), make(map[netip.Addr]bool)
	for _, h := range want.Redirects {
		if _, taking := slices.BinarySearchFunc(want.Taking, h.VIP, netip.Addr.Compare); !taking {
			continue
		}
		if p.forgotten[h.VIP] {
			taken[h.VIP] = true
		} else {
			fresh[h.VIP] = true
		}
	}
	p.forgotten = taken
	if len(fresh) == 0 {
		return nil
	}
	r := requestOf(maps.Keys(fresh))
	r.status, r.mask = ipsDstNAT, ipsDstNAT
	deleted, err := deleteFlowsIf(p.sock, r, func(f *flow) bool { return f.dnat && f.ended && fresh[f.vip] })
	p.metrics.flows.Add(float64(len(deleted)))
	if err = errors.Join(err, p.bypass.forget(ctx, fresh)); err == nil {
		maps.Copy(p.forgotten, fresh)
	}
	return err
}
