package renderer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A Renderer writes States into one part of the kernel, as rules and sets. Only one
// goroutine at a time may call it.
type Renderer interface {
	// VIPs returns the addresses that the kernel forwards by this renderer's rules,
	// sorted, whichever process wrote the rules.
	VIPs() ([]netip.Addr, error)
	// Update changes the rules in the kernel from u.Have to u.Want without reading them. If
	// the kernel held something else than u.Have, the error is one after which Converge is
	// called; what the kernel then holds is not known.
	Update(ctx context.Context, u Step) error
	// Converge reads the rules from the kernel and changes them to want. have is what the
	// kernel should hold, nil if that is not known. The Finding is valid with an error too.
	Converge(ctx context.Context, have *state.State, want state.State) (Finding, error)
	// Differs describes how the kernel's rules differ from a State; empty if they do not. It
	// does not change them.
	Differs(ctx context.Context, from state.State) (string, error)
	// Redirect writes the redirects of want. It is called when the kernel holds the rest of
	// want; an error does not affect that rest. With look, it compares with the kernel first.
	Redirect(ctx context.Context, want state.State, look bool) error
	// Lacks returns why the renderer cannot forward addresses of a family, nil if it can.
	Lacks(f state.SetID) error
	// Probe makes a change without effect on packets. It fails if the kernel accepts no
	// change at all, so that the caller does not blame an address for that.
	Probe(ctx context.Context) error
	// Remove deletes all rules and sets of this renderer, also those of an earlier process.
	Remove(ctx context.Context) error
}

// A Step is the change from one State to the next, with the differences between them.
type Step struct {
	Have, Want state.State
	// VIPs are the differences by address, and Elements the same differences as elements of
	// the sets of nftables. The iptables renderer reads VIPs and the sets of replies only.
	VIPs     []state.VIPChange
	Elements state.Change
}

// A Finding is what Converge found in the kernel before it changed it.
type Finding struct {
	// Found is how the kernel differed from have; empty if it did not. It goes into a log
	// line and into the status.
	Found string
	// Had is what the kernel held, sorted, as far as it can be read. It decides which
	// conntrack entries are deleted.
	Had []state.Element
	// Leaked says that rules were missing for a while. Flows that began then may have passed
	// untranslated, so their conntrack entries cannot be trusted.
	Leaked bool
}

// A Host is the part of the Proxy that a renderer uses.
type Host struct {
	Log *slog.Logger
	// Sock is the proxy's socket for changes. The proxy's own listener drops notifications
	// of changes made by it.
	Sock *nfnl.Socket
	// Dumped is called when all rules are read from the kernel. Changed is called after a
	// transaction, with its duration; zero if that is not measured.
	Dumped  func()
	Changed func(took time.Duration)
	// Unsupported receives the parts of the State that the renderer replaces by something
	// else, as sentences for the status. It replaces those of the call before.
	Unsupported func([]string)
	// IgnoringOwn runs change without receiving notifications meanwhile. change must make
	// exactly that many transactions of nftables, or none with an error: any other number
	// counts as a change by another program.
	IgnoringOwn func(s *nfnl.Socket, transactions uint32, change func() error) error
}

// Run runs a program and returns its standard output. An error has the first lines of its standard error.
func Run(ctx context.Context, input, program string, args ...string) (string, error) {
	var out, complaint strings.Builder
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, FirstLines(complaint.String(), 3))
	}
	return out.String(), nil
}

// FirstLines returns the first n lines of what a program printed, joined by "; ", for an
// error text of one line.
func FirstLines(s string, n int) string {
	lines := strings.SplitN(strings.TrimSpace(s), "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "; ")
}

// dumpAttempts limits how often a list is read again because it changed meanwhile. Any change of
// any table counts, and kube-proxy may be busy.
const dumpAttempts = 20

// Dump lists one kind of object of nftables, repeatedly until it did not change meanwhile: the kernel
// marks a list that did as inconsistent (NLM_F_DUMP_INTR). It calls reset before each attempt, then
// each for every entry.
func Dump(s *nfnl.Socket, kind, family uint8, request []byte, reset func(),
	each func(family uint8, data []byte)) error {
	var err error
	for range dumpAttempts {
		reset()
		if err = s.DumpFamilies(unix.NFNL_SUBSYS_NFTABLES, kind, family, request, each); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}
