package iptables

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// clientEntries are n clients.
func clientEntries(n int) (all []setEntry) {
	for i := range n {
		a := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0x0a000000+uint32(i))))
		all = append(all, setEntry{addr: netip.PrefixFrom(a, 32)})
	}
	return all
}

// countClients is how many entries a set has that are among all from the index on.
func countClients(t *testing.T, s *nfnl.Socket, name string, from int) (n int) {
	t.Helper()
	err := listSets(s, name, 0, func(data []byte) {
		for _, item := range nfnl.Attributes(nfnl.Attribute(data, ipsetAttrEntries)) {
			a := parseEntry(ipsetVIPs, item).addr.Addr().As4()
			if int(binary.BigEndian.Uint32(a[:])-0x0a000000) >= from {
				n++
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A set that is full says so, by an error that makes the proxy look for the address that is too
// large. One of affinity takes new clients in the place of others.
func TestFullSet(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		s, err := nfnl.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		const most = 64
		if err := createSet(s, "fanfare-small", setForm{kind: "hash:ip", most: most}); err != nil {
			t.Fatal(err)
		}
		err = changeSet(s, ipsetAdd, "fanfare-small", clientEntries(2*most))
		var full *SetError
		if !errors.As(err, &full) || !strings.Contains(err.Error(), "set fanfare-small: ipset: the set is full") {
			t.Errorf("more entries than there is room for: %v", err)
		}

		if err := createSet(s, "fanfare-clients",
			setForm{affinityKind, state.SetID(0), time.Hour, most, true}); err != nil {
			t.Fatal(err)
		}
		all := clientEntries(100 * most)
		for i := range all {
			// It may be refused if its place in the hash table is empty.
			if err := changeSet(s, ipsetAdd, "fanfare-clients", all[i:i+1]); err != nil && !errors.As(err, &full) {
				t.Fatal(err)
			}
		}
		if n, late := countClients(t, s, "fanfare-clients", 0),
			countClients(t, s, "fanfare-clients", 50*most); n > most || late == 0 {
			t.Errorf("%d clients, %d of them of the later half; want %d at most, and later ones", n, late, most)
		}
	})
}

// What cannot be read may still be there: RemoveChains says so.
func TestRemoveChainsFails(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		dir := t.TempDir()
		for _, part := range []string{"save", "restore"} {
			script := "#!/bin/sh\necho cannot read >&2\nexit 4\n"
			if err := os.WriteFile(filepath.Join(dir, "iptables-nft-"+part), []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Setenv("PATH", dir); err != nil {
			t.Fatal(err)
		}
		if err := RemoveChains(t.Context(), nil); err == nil ||
			!strings.Contains(err.Error(), "rules of iptables-nft may remain") ||
			!strings.Contains(err.Error(), "cannot read") {
			t.Errorf("got %v", err)
		}
	})
}
