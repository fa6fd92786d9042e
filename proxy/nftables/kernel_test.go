package nftables

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// A kernel is a Renderer with the kernel that it writes into, and the State that this holds.
type kernel struct {
	*Renderer
	t    testing.TB
	have *state.State // nil: not known
}

func newKernel(t testing.TB) *kernel {
	t.Helper()
	sock, err := nfnl.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sock.Close() })
	return &kernel{t: t, Renderer: &Renderer{NFT: newNFT(t), Host: renderer.Host{
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Sock: sock, Dumped: func() {},
		Changed:     func(time.Duration) {},
		IgnoringOwn: func(_ *nfnl.Socket, _ uint32, change func() error) error { return change() },
	}}}
}

// newNFT runs the machine's nft.
func newNFT(t testing.TB) *NFT {
	return &NFT{Commands: Installed(), Crashed: func(replaced string) { t.Log("nft crashed: ", replaced) }}
}

// set makes the kernel hold want, by the difference if what it holds is known.
func (k *kernel) set(want state.State) {
	k.t.Helper()
	if k.have == nil {
		if _, err := k.Converge(k.t.Context(), nil, want); err != nil {
			k.t.Fatal(err)
		}
	} else {
		vips := state.DiffVIPs(k.have.VIPs, want.VIPs)
		if err := k.Update(k.t.Context(), renderer.Step{Have: *k.have, Want: want, VIPs: vips,
			Elements: state.DiffStates(*k.have, want, vips, state.RepliesOf(k.have.VIPs))}); err != nil {
			k.t.Fatal(err)
		}
	}
	k.have = &want
}

// check compares what the kernel holds with what it was set to.
func (k *kernel) check() {
	k.t.Helper()
	got := k.whole()
	if d := got.damage(); d != "" {
		k.t.Fatalf("the table is damaged: %s", d)
	}
	if d := differenceText(state.DiffElements(got.elements, state.RenderState(*k.have))); d != "" {
		k.t.Fatalf("%s; want\n%s", d, k.have)
	}
	for name := range state.ChainUses(got.elements) {
		if _, ok := got.chains[name]; !ok {
			k.t.Errorf("chain %s is used and not there", name)
		}
	}
}
