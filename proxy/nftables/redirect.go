package nftables

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// redirectRetry is the least time between two attempts at what failed.
const redirectRetry = 5 * time.Second

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

// redirectTables are what an Renderer knows of the tables that redirect connections.
type redirectTables struct {
	known bool // the tables are as said here
	have  state.State
	// listing is how nft shows them.
	listing string
	// tried is what failed with err at a time: a kernel that cannot do it is not asked with
	// every Set.
	tried state.State
	err   error
	at    time.Time
}

// Redirect writes the redirects of a State. look compares with the kernel first.
//
// Elements are changed one by one where a table is there: a packet that is in the chain
// while another takes its place would find the old map empty, and be refused.
func (n *Renderer) Redirect(ctx context.Context, want state.State, look bool) error {
	r := &n.redirects
	if r.err != nil && state.SameRedirects(r.tried, want) && time.Since(r.at) < redirectRetry {
		return r.err
	}
	r.err = r.write(ctx, want, look)
	r.tried, r.at = state.State{Redirects: want.Redirects, Nodes: want.Nodes}, time.Now()
	return r.err
}

func (r *redirectTables) write(ctx context.Context, want state.State, look bool) error {
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
				if err := deleteTableOf(state.NFFamily(f), renderer.RedirectTable); err != nil {
					return err
				}
			}
		case !r.known || len(had) == 0:
			fmt.Fprintf(&script, "add table %[1]s %[2]s\ndelete table %[1]s %[2]s\n"+redirectText, redirectFamilies[f], renderer.RedirectTable)
			redirectElements(&script, f, state.State{}, want)
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
	r.known, r.have = true, state.State{Redirects: want.Redirects, Nodes: want.Nodes}
	r.listing = listRedirects(ctx, r.have)
	return nil
}

// redirectElements writes what turns the elements of have into those of want.
func redirectElements(b *strings.Builder, f state.SetID, have, want state.State) {
	via := func(h state.Redirect) string { return fmt.Sprintf("%s . %q : %s", h.VIP, h.Interface, h.Via) }
	change := func(verb, set string, all []string) {
		if len(all) > 0 {
			fmt.Fprintf(b, "%s element %s %s %s { %s }\n", verb, redirectFamilies[f], renderer.RedirectTable, set, strings.Join(all, ", "))
		}
	}
	text := func(mac [6]byte) string { return net.HardwareAddr(mac[:]).String() }
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
func listRedirects(ctx context.Context, s state.State) (listing string) {
	for f := range state.SetID(2) {
		if len(state.RedirectsOf(s.Redirects, f)) == 0 {
			continue
		}
		out, err := exec.CommandContext(ctx, "nft", "--stateless", "list", "table", redirectFamilies[f], renderer.RedirectTable).Output()
		if err != nil {
			return ""
		}
		listing += string(out)
	}
	return listing
}

// deleteRedirects removes the tables.
func deleteRedirects() error {
	return errors.Join(deleteTableOf(unix.NFPROTO_IPV4, renderer.RedirectTable), deleteTableOf(unix.NFPROTO_IPV6, renderer.RedirectTable))
}
