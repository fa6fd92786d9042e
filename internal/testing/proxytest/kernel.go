package proxytest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Forwarded is how many IPv4 packets a router has forwarded.
func (l *Lab) Forwarded(ns *nstest.NS) int {
	l.T.Helper()
	var b []byte
	var err error
	ns.Do(func() { b, err = os.ReadFile("/proc/thread-self/net/snmp") })
	if err != nil {
		l.T.Fatal(err)
	}
	lines := strings.Split(string(b), "\n")
	names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
	n, err := strconv.Atoi(values[slices.Index(names, "ForwDatagrams")])
	if err != nil {
		l.T.Fatal(err)
	}
	return n
}

// NFT runs a script of nft on the node, as another program would.
func NFT(t testing.TB, script string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
}

// LockTable has another program own an empty table inet fanfare, so that the kernel refuses changes of
// it by other processes, until unlock is called.
func LockTable(t testing.TB) (unlock func()) {
	t.Helper()
	nft := exec.Command("nft", "-i")
	in, err := nft.StdinPipe()
	if err == nil {
		err = nft.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	unlock = sync.OnceFunc(func() {
		_ = nft.Process.Kill() // It may be gone already.
		_ = nft.Wait()
	})
	t.Cleanup(unlock)
	if _, err := in.Write([]byte("add table inet " + renderer.TableName + " { flags owner; }\n")); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for exec.Command("nft", "list", "table", "inet", renderer.TableName).Run() != nil {
		if time.Now().After(deadline) {
			t.Fatal("nft -i has not added the table in a minute")
		}
	}
	return unlock
}

// NFTSays runs a command of nft and returns what it prints.
func NFTSays(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// ReadSet lists the elements of a set of the table, none if there is no such set. It must not be
// one of intervals.
func ReadSet(tb testing.TB, id state.SetID) (all []state.Element) {
	tb.Helper()
	for key, data := range readSet(tb, state.Specs[id].Name) {
		all = append(all, state.Element{Set: id, Key: key, Data: data})
	}
	slices.SortFunc(all, state.Element.Compare)
	return all
}

// Affinity lists the entries of clients as "10.0.1.2" or, for IPv6, a hash, each with its frontend,
// such as "tcp/80: 0a000102 at 1f2e:3d4c", sorted.
func Affinity(tb testing.TB) (all []string) {
	tb.Helper()
	for f := range state.SetID(2) {
		for key, id := range readSet(tb, state.AffinityMap(f)) {
			client, frontend := state.SplitAffinityKey(key)
			_, port := frontend.Text()
			all = append(all, fmt.Sprintf("%s: %x at %s", port, client, state.ParseNumber(id)))
		}
	}
	slices.Sort(all)
	return all
}

// AffinityEntry is the map of nftables that has a client of a frontend, and the element.
func AffinityEntry(client, vip netip.Addr, at state.Port, backend netip.AddrPort) (set, element string) {
	f := state.Family(vip)
	word := func(a netip.Addr) string {
		if f == 0 {
			return a.String()
		}
		return fmt.Sprint(binary.NativeEndian.Uint32([]byte(state.AffinityOf(a, state.Port{})[:4])))
	}
	id := state.ParseNumber(string(state.Encoding(nil).ID(state.BackendIDs([]state.Backend{{Addr: backend}})[0])))
	return state.AffinityMap(f), fmt.Sprintf("%s . %s . %s . %d : %s", word(client), word(vip), at.Proto, at.Port, id)
}

// readSet lists the keys and values of a set.
func readSet(tb testing.TB, name string) map[string]string {
	tb.Helper()
	s, err := nfnl.Dial()
	if err != nil {
		tb.Fatal(err)
	}
	defer s.Close()
	var e nfnl.Encoder
	e.Text(unix.NFTA_SET_ELEM_LIST_TABLE, renderer.TableName)
	e.Text(unix.NFTA_SET_ELEM_LIST_SET, name)
	all := make(map[string]string)
	for range 20 { // any change meanwhile interrupts the list
		clear(all)
		err = s.Dump(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETSETELEM, unix.NFPROTO_INET, e.B, func(data []byte) {
			for _, item := range nfnl.Attributes(nfnl.Attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
				key := string(nfnl.Attribute(item, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE))
				all[key] = string(nfnl.Attribute(item, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE))
			}
		})
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		tb.Fatalf("list %s: %v", name, err)
	}
	return all
}

// AddElements puts elements, in the words of nft, into a set of the table.
func AddElements(tb testing.TB, set string, all []string) {
	tb.Helper()
	NFT(tb, fmt.Sprintf("add element inet %s %s { %s }\n", renderer.TableName, set, strings.Join(all, ", ")))
}

// Schema is the name of the chain that says what the table is.
func Schema(tb testing.TB) string {
	tb.Helper()
	return regexp.MustCompile(`schema-[\w-]+`).FindString(NFTSays(tb, "list", "chains", "inet"))
}
