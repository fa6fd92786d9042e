package nftables

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// redirectRetry is the shortest time between two attempts at redirects that failed.
const redirectRetry = 5 * time.Second

//go:embed redirect.nft
var redirectText string

// redirectTable returns the text of a family's table without elements.
func redirectTable(f state.SetID) string {
	values := map[string]string{
		"family": redirectFamilies[f], "name": renderer.RedirectTable,
		"type": [2]string{"ipv4_addr", "ipv6_addr"}[f], "hops": [2]string{"ttl", "hoplimit"}[f],
		"least": strconv.Itoa(state.RedirectTTL - state.MaxRedirects), "ttl": strconv.Itoa(state.RedirectTTL),
	}
	return os.Expand(redirectText, func(name string) string { return values[name] })
}

// redirectFamilies are nft's names of the families.
var redirectFamilies = [2]string{"ip", "ip6"}

// redirectTables is what a Renderer knows of the tables for redirects.
type redirectTables struct {
	known bool // the tables are as recorded here
	have  []state.Redirect
	// listing is nft's listing of the tables.
	listing string
	// tried are redirects that failed with err. They are not tried again with every Set: the kernel
	// may not support them.
	tried []state.Redirect
	err   error
	at    time.Time
}

// Redirect writes the redirects of a State. look compares with the kernel first.
//
// In an existing table, elements are changed one by one: if the table were replaced, a packet
// inside the chain would find the old map empty, and be refused.
func (n *Renderer) Redirect(ctx context.Context, want state.State, look bool) error {
	r := &n.redirects
	if r.err != nil && slices.Equal(r.tried, want.Redirects) && time.Since(r.at) < redirectRetry {
		return r.err
	}
	r.err = r.write(ctx, n.NFT, want.Redirects, look)
	r.tried, r.at = want.Redirects, time.Now()
	return r.err
}

func (r *redirectTables) write(ctx context.Context, nft *NFT, want []state.Redirect, look bool) error {
	if look && r.known && len(r.have) > 0 {
		r.known = listRedirects(ctx, nft, r.have) == r.listing
	}
	if r.known && slices.Equal(r.have, want) {
		return nil
	}
	var script strings.Builder
	for f := range state.SetID(2) {
		had, has := state.RedirectsOf(r.have, f), state.RedirectsOf(want, f)
		switch {
		case len(has) == 0:
			if len(had) > 0 || !r.known {
				if err := deleteTableOf(state.NFFamily(f), renderer.RedirectTable); err != nil {
					return err
				}
			}
		case !r.known || len(had) == 0:
			fmt.Fprintf(&script, "add table %[1]s %[2]s\ndelete table %[1]s %[2]s\n", redirectFamilies[f],
				renderer.RedirectTable)
			script.WriteString(redirectTable(f))
			redirectElements(&script, f, nil, has)
		default:
			redirectElements(&script, f, had, has)
		}
	}
	r.known = false
	if script.Len() > 0 {
		if err := nft.load(ctx, script.String()); err != nil {
			return err
		}
	}
	r.known, r.have = true, want
	r.listing = listRedirects(ctx, nft, r.have)
	return nil
}

// redirectElements writes the nft commands that change the elements of have into those of want, for
// one family.
func redirectElements(b *strings.Builder, f state.SetID, have, want []state.Redirect) {
	for _, of := range []struct {
		set      string
		elements func([]state.Redirect) []string
	}{
		{"vips", vipElements},
		{"senders", senderElements},
		{"via", hopElements(func(h state.Redirect) netip.Addr { return h.Via })},
		{"onward", hopElements(func(h state.Redirect) netip.Addr { return h.Onward })},
		{"beyond", hopElements(func(h state.Redirect) netip.Addr { return h.Beyond })},
	} {
		had, has := of.elements(have), of.elements(want)
		for _, change := range []struct {
			verb string
			list []string
		}{{"delete", lacking(had, has)}, {"add", lacking(has, had)}} {
			if len(change.list) > 0 {
				fmt.Fprintf(b, "%s element %s %s %s { %s }\n", change.verb, redirectFamilies[f], renderer.RedirectTable,
					of.set, strings.Join(change.list, ", "))
			}
		}
	}
}

func vipElements(all []state.Redirect) (list []string) {
	for _, h := range all {
		list = append(list, h.VIP.String())
	}
	return slices.Compact(list) // all is sorted
}

func senderElements(all []state.Redirect) (list []string) {
	for _, h := range all {
		if h.OnwardMAC != [6]byte{} {
			list = append(list, fmt.Sprintf("%s . %q . %s", h.VIP, h.Interface, net.HardwareAddr(h.OnwardMAC[:])))
		}
	}
	return list
}

func hopElements(to func(state.Redirect) netip.Addr) func([]state.Redirect) []string {
	return func(all []state.Redirect) (list []string) {
		for _, h := range all {
			if to := to(h); to.IsValid() {
				list = append(list, fmt.Sprintf("%s . %q : %s", h.VIP, h.Interface, to))
			}
		}
		return list
	}
}

// lacking returns the members of all that are not in of.
func lacking(all, of []string) []string {
	in := make(map[string]bool, len(of))
	for _, t := range of {
		in[t] = true
	}
	return slices.DeleteFunc(slices.Clone(all), func(t string) bool { return in[t] })
}

// listRedirects returns nft's listing of the tables for redirects, without counters; empty for a
// missing table.
func listRedirects(ctx context.Context, nft *NFT, all []state.Redirect) (listing string) {
	for f := range state.SetID(2) {
		if len(state.RedirectsOf(all, f)) == 0 {
			continue
		}
		out, err := nft.run(ctx, "", "--stateless", "list", "table", redirectFamilies[f], renderer.RedirectTable)
		if err != nil {
			return ""
		}
		listing += out
	}
	return listing
}

// deleteRedirects removes the tables.
func deleteRedirects() error {
	return errors.Join(deleteTableOf(unix.NFPROTO_IPV4, renderer.RedirectTable),
		deleteTableOf(unix.NFPROTO_IPV6, renderer.RedirectTable))
}
