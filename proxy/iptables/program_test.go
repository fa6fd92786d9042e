package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	goiptables "github.com/coreos/go-iptables/iptables"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
)

// inFrontOf puts a script in front of a program: with the argument, it does what the shell reads in
// instead, otherwise the same. A program that is missing only tells a version.
func inFrontOf(t *testing.T, name, argument, instead string) {
	t.Helper()
	exe, err := exec.LookPath(name)
	if err != nil {
		exe = "echo v1.8.9"
	}
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *' %s '*) %s;; esac\nexec %s \"$@\"\n", argument, instead, exe)
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755),
		os.Setenv("PATH", dir+":"+os.Getenv("PATH")),
	); err != nil {
		t.Fatal(err)
	}
}

// hangs makes a program hang that gets the argument. The context ends when it does.
func hangs(t *testing.T, name, argument string) context.Context {
	t.Helper()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	inFrontOf(t, name, argument, "echo >"+fifo+"; exec sleep 600")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		if _, err := os.ReadFile(fifo); err != nil { // waits for a writer
			t.Error(err)
		}
	}()
	return ctx
}

// A program that hangs ends with the context, and changes nothing later.
func TestByRuleEndsWithContext(t *testing.T) {
	t.Setenv("PATH", os.Getenv("PATH")) // is restored afterwards
	ctx := hangs(t, "iptables-hung", "-D")
	runtime.LockOSThread() // whose children are asked for
	defer runtime.UnlockOSThread()
	err := Program{Name: "iptables-hung"}.byRule(ctx, loadPatience, loadLockWait, func(t *goiptables.IPTables) error {
		return t.DeleteIfExists("filter", "FORWARD", "-j", "DROP")
	})
	if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "iptables-hung: ") {
		t.Errorf("%v: want the end of the context", err)
	}
	if left, err := os.ReadFile("/proc/thread-self/children"); err != nil || len(left) > 0 {
		t.Errorf("the program still runs: %q, %v", left, err)
	}
}

// The speaker is killed after the jump is inserted in its new place, and before the former one is
// deleted. FORWARD is open meanwhile, and the next process deletes the former jump.
func TestForwardKilledBetweenSteps(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		i := Program{Name: "iptables-nft"}
		prefixes := proxytest.Prefixes("192.0.2.0/24")
		runIPTables(t, "iptables-nft -P FORWARD DROP")
		if open, wrote, err := i.open(t.Context(), prefixes); !open || !wrote || err != nil {
			t.Fatalf("open %t, wrote %t: %v", open, wrote, err)
		}
		runIPTables(t, "iptables-nft -A FORWARD -s 198.51.100.1 -j DROP") // the jump must go behind it

		path := os.Getenv("PATH")
		if _, _, err := i.open(hangs(t, i.Name, "-D"), prefixes); !errors.Is(err, context.Canceled) {
			t.Errorf("%v: want the end of the context", err)
		}
		const other = "-A FORWARD -s 198.51.100.1/32 -j DROP"
		expectForward(t, i, ourJump, other, ourJump)

		if err := os.Setenv("PATH", path); err != nil {
			t.Fatal(err)
		}
		if open, wrote, err := i.open(t.Context(), prefixes); !open || !wrote || err != nil {
			t.Errorf("open %t, wrote %t: %v", open, wrote, err)
		}
		expectForward(t, i, other, ourJump)
	})
}

// A former jump that cannot be deleted is an error, but no address is held back for it: the new one
// is in place.
func TestForwardOpenInSpiteOfError(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		i := Program{Name: "iptables-nft"}
		prefixes := proxytest.Prefixes("192.0.2.0/24")
		runIPTables(t, "iptables-nft -P FORWARD DROP")
		runIPTables(t, "iptables-nft -N FANFARE-FORWARD")
		runIPTables(t, "iptables-nft -A FORWARD -j FANFARE-FORWARD")
		runIPTables(t, "iptables-nft -A FORWARD -s 198.51.100.1 -j DROP")
		inFrontOf(t, i.Name, "-D", "echo no >&2; echo never >&2; exit 4")
		if _, _, err := i.open(t.Context(), prefixes); err == nil || !strings.HasSuffix(err.Error(), ": no; never") ||
			len(ClosedBy(err)) > 0 {
			t.Errorf("%v, closed by %v: want an error alone", err, ClosedBy(err))
		}
		runIPTables(t, "iptables-nft -I FORWARD -j DROP")
		if _, _, err := i.open(t.Context(), prefixes); !slices.Equal(ClosedBy(err), []string{i.Name}) {
			t.Errorf("%v, closed by %v: want %s", err, ClosedBy(err), i.Name)
		}
	})
}

func runIPTables(t *testing.T, command string) {
	t.Helper()
	args := strings.Fields(command)
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// expectForward checks the rules of FORWARD.
func expectForward(t *testing.T, i Program, want ...string) {
	t.Helper()
	save, err := i.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(save) {
		if strings.HasPrefix(line, "-A FORWARD ") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("FORWARD (-want +got)\n%s", diff)
	}
}

// A jump of another version is deleted by its words, whatever its comment quotes.
func TestForwardDeletesQuotedJump(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		i := Program{Name: "iptables-nft"}
		runIPTables(t, "iptables-nft -N FANFARE-FORWARD")
		for _, comment := range []string{"plain", "two words", `a "quoted" \ one's`} {
			if out, err := exec.Command(i.Name, "-A", "FORWARD", "-m", "comment", "--comment", comment, "-j",
				ForwardChain).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		if open, wrote, err := i.open(t.Context(), nil); open || !wrote || err != nil {
			t.Errorf("open %t, wrote %t: %v", open, wrote, err)
		}
		expectForward(t, i)
	})
}

// Chains show which program a node uses. With the old interface, the question creates no table.
func TestTraces(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		nft := Programs[0]
		for _, tt := range []struct {
			command string
			want    int
		}{
			{"-t nat -N OTHER", 0},
			{"-t mangle -N KUBE-IPTABLES-HINT", 1},
			{"-t nat -N " + xtArriving, 2},
		} {
			runIPTables(t, nft.Name+" "+tt.command)
			if got := nft.traces(t.Context()); got != tt.want {
				t.Errorf("after %s: %d, want %d", tt.command, got, tt.want)
			}
		}
		for _, i := range Programs {
			if i.Legacy() && i.traces(t.Context()) != 0 {
				t.Errorf("%s has traces", i.Name)
			}
			if tables, _ := os.ReadFile(i.Tables); len(tables) > 0 { // not readable without the old interface
				t.Errorf("%s created %s", i.Name, tables)
			}
		}
	})
}
