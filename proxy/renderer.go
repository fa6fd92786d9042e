package proxy

import (
	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"log/slog"
	"strings"
	"time"

	"context"
	"net/netip"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A renderer writes States in the words of one part of the kernel. It is asked by
// one goroutine at a time.
type renderer interface {
	// vips lists the addresses that the kernel forwards by this renderer's rules,
	// sorted, whichever process wrote them.
	vips() ([]netip.Addr, error)
	// update makes the kernel, which holds u.have, hold u.want. An error that
	// isStale says that it held something else.
	update(ctx context.Context, u step) error
	// converge reads what the kernel holds and makes it hold want. have is what it
	// should hold, nil if that is not known.
	converge(ctx context.Context, have *State, want State) (finding, error)
	// differs says how the kernel differs from a State; empty if it does not. It changes nothing.
	differs(ctx context.Context, from State) (string, error)
	// redirect writes the redirects of want, after the kernel holds the rest of want.
	// look compares with the kernel first.
	redirect(ctx context.Context, want State, look bool) error
	// lacks says what the renderer lacks for an address of this family, nil if nothing.
	lacks(f state.SetID) error
	// probe makes a change of no consequence, and fails if the kernel takes none at all.
	probe(ctx context.Context) error
	// remove takes everything away that the renderer wrote.
	remove(ctx context.Context) error
}

// A step leads from one State to the next.
type step struct {
	have, want State
	vips       []state.VipChange // what differs, by address
	elements   state.Change      // and in the words of nftables, which conntrack's care speaks too
}

// A finding is what converge met.
type finding struct {
	found  string          // how the kernel differed from have, or what was damaged; empty if it did not
	had    []state.Element // what it held, sorted, as far as that can be read
	leaked bool            // for a while there were no rules, and anything could pass
}

// A host is what a renderer uses of the Proxy.
type host struct {
	log  *slog.Logger
	sock *nfnl.Socket
	// dumped is called when all rules are read from the kernel, and changed when a
	// transaction is made, with the time that it took; zero: that is not measured.
	dumped  func()
	changed func(took time.Duration)
	// unsupported takes what of the State the renderer does otherwise.
	unsupported func([]string)
	// ignoringOwn runs change, which makes a number of transactions, without listening to
	// their notifications.
	ignoringOwn func(s *nfnl.Socket, transactions uint32, change func() error) error
}

// firstLines are the first lines of what a program printed, for an error.
func firstLines(s string, n int) string {
	lines := strings.SplitN(strings.TrimSpace(s), "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "; ")
}
