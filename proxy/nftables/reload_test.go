package nftables

import (
	"os"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// repair has the kernel hold the same again, after another program has changed the table.
func (k *kernel) repair() {
	k.t.Helper()
	if _, err := k.Converge(k.t.Context(), k.have, *k.have); err != nil {
		k.t.Fatal(err)
	}
	k.check()
}

// whole returns the table with its elements. The kernel enlarges the hash table of a set some time after elements
// were added: a set that is listed meanwhile repeats or lacks some. So two listings must be equal.
func (k *kernel) whole() *table {
	k.t.Helper()
	var last *table
	for range 100 {
		t, err := readTable(k.Sock)
		if err != nil {
			k.t.Fatal(err)
		}
		if reflect.DeepEqual(t, last) {
			return t
		}
		last = t
	}
	k.t.Fatal("no two listings of the table are equal")
	return nil
}

// withoutNFT runs f in an environment without nft.
func withoutNFT(t *testing.T, f func()) {
	t.Helper()
	path := os.Getenv("PATH")
	if err := os.Setenv("PATH", ""); err != nil {
		t.Fatal(err)
	}
	defer os.Setenv("PATH", path)
	f()
}

var reloadDamages = []string{
	"delete table inet fanfare",
	"flush table inet fanfare",
	"add chain inet fanfare mine",
	"add table inet fanfare { flags dormant; }",
}

// reloadStates are the golden ones and random ones.
func reloadStates() map[string]state.State {
	w, random := proxytest.NewWorld(7), state.State{Node: "n1"}
	states := proxytest.GoldenStates()
	for i := range 10 {
		random = w.Next(random)
		states["random "+string(rune('a'+i))] = random
	}
	return states
}

// Rules that were read once are loaded again without nft, and are the same as by nft.
func TestReload(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		for name, s := range reloadStates() {
			k := newKernel(t)
			k.set(s)
			want := k.whole()
			for _, damage := range reloadDamages {
				proxytest.NFT(t, damage)
				withoutNFT(t, k.repair)
				if got := k.whole(); !reflect.DeepEqual(got, want) {
					t.Fatalf("%s: after %q (-want +got)\n%s", name, damage,
						cmp.Diff(want, got, cmp.AllowUnexported(table{}, chain{})))
				}
			}
			if err := DeleteTables(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Elements that do not fit into one transaction follow the rules, or nft replaces the table.
func TestReloadInParts(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		k := newKernel(t)
		k.part = 1000
		k.set(proxytest.GoldenStates()["cluster"])
		proxytest.NFT(t, "delete table inet fanfare")
		withoutNFT(t, k.repair)
		proxytest.NFT(t, "flush chain inet fanfare unasked")
		k.repair()
	})
}

// If the kernel refuses what was read, or shows something else afterwards, nft loads the rules.
func TestReloadRefused(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		k := newKernel(t)
		k.set(proxytest.GoldenStates()["cluster"])
		want := k.whole()
		var policy nfnl.Encoder
		policy.Uint32(unix.NFTA_SET_POLICY, unix.NFT_SET_POL_PERFORMANCE) // the default, which the kernel does not show
		for name, spoil := range map[string]func(){
			"a rule is cut off": func() {
				k.table.chains["refuse"] = chain{rules: [][]byte{want.chains["refuse"].rules[0][:8]}}
			},
			"a hook is refused": func() { k.table.chains["refuse"] = chain{hook: "x"} },
			"a set is shown":    func() { k.table.sets["vips4"] += string(policy.B) },
		} {
			spoil()
			proxytest.NFT(t, "delete table inet fanfare")
			k.repair()
			if got := k.whole(); !reflect.DeepEqual(got, want) {
				t.Errorf("%s (-want +got)\n%s", name, cmp.Diff(want, got, cmp.AllowUnexported(table{}, chain{})))
			}
		}
	})
}
