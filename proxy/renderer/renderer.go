package renderer

import (
	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"log/slog"
	"strings"
	"time"

	"context"
	"net/netip"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A Renderer writes States in the words of one part of the kernel. It is asked by
// one goroutine at a time.
type Renderer interface {
	// VIPs lists the addresses that the kernel forwards by this renderer's rules,
	// sorted, whichever process wrote them.
	VIPs() ([]netip.Addr, error)
	// Update makes the kernel, which holds u.have, hold u.want. An error that
	// isStale says that it held something else.
	Update(ctx context.Context, u Step) error
	// Converge reads what the kernel holds and makes it hold want. have is what it
	// should hold, nil if that is not known.
	Converge(ctx context.Context, have *state.State, want state.State) (Finding, error)
	// Differs says how the kernel differs from a State; empty if it does not. It changes nothing.
	Differs(ctx context.Context, from state.State) (string, error)
	// Redirect writes the redirects of want, after the kernel holds the rest of want.
	// look compares with the kernel first.
	Redirect(ctx context.Context, want state.State, look bool) error
	// Lacks says what the renderer lacks for an address of this family, nil if nothing.
	Lacks(f state.SetID) error
	// Probe makes a change of no consequence, and fails if the kernel takes none at all.
	Probe(ctx context.Context) error
	// Remove takes everything away that the renderer wrote.
	Remove(ctx context.Context) error
}

// A Step leads from one State to the next.
type Step struct {
	Have, Want state.State
	VIPs       []state.VipChange // what differs, by address
	Elements   state.Change      // and in the words of nftables, which conntrack's care speaks too
}

// A Finding is what converge met.
type Finding struct {
	Found  string          // how the kernel differed from have, or what was damaged; empty if it did not
	Had    []state.Element // what it held, sorted, as far as that can be read
	Leaked bool            // for a while there were no rules, and anything could pass
}

// A Host is what a renderer uses of the Proxy.
type Host struct {
	Log  *slog.Logger
	Sock *nfnl.Socket
	// Dumped is called when all rules are read from the kernel, and changed when a
	// transaction is made, with the time that it took; zero: that is not measured.
	Dumped  func()
	Changed func(took time.Duration)
	// Unsupported takes what of the State the renderer does otherwise.
	Unsupported func([]string)
	// IgnoringOwn runs change, which makes a number of transactions, without listening to
	// their notifications.
	IgnoringOwn func(s *nfnl.Socket, transactions uint32, change func() error) error
}

// FirstLines are the first lines of what a program printed, for an error.
func FirstLines(s string, n int) string {
	lines := strings.SplitN(strings.TrimSpace(s), "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "; ")
}
