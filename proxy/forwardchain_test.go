package proxy

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// withIPTables is inNamespace on a machine that has both iptables. The lock of the
// old one, which is the machine's, is replaced by the test's own.
func withIPTables(t *testing.T, f func(t *testing.T, lock string)) {
	t.Helper()
	for _, i := range iptables.Programs {
		if _, err := exec.LookPath(i.Name); err != nil {
			nstest.Missing(t, err.Error())
		}
	}
	proxytest.InNamespace(t, func(t *testing.T) {
		lock := filepath.Join(t.TempDir(), "xtables.lock")
		// The process is this test's alone.
		if err := os.Setenv("XTABLES_LOCKFILE", lock); err != nil {
			t.Fatal(err)
		}
		f(t, lock)
	})
}

// iptablesRun runs iptables as another program on the node would.
func iptablesRun(t *testing.T, command string) {
	t.Helper()
	args := strings.Fields(command)
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// legacyOrSkip ends a test on a kernel that has no legacy tables, or in a user
// namespace that cannot see which there are.
func legacyOrSkip(t testing.TB) {
	t.Helper()
	for _, i := range iptables.Programs {
		if i.Tables == "" {
			continue
		}
		if out, err := exec.Command(i.Name, "-S").CombinedOutput(); err != nil {
			nstest.Missing(t, fmt.Sprintf("%s: %v: %s", i.Name, err, out))
		}
		if _, err := os.ReadFile(i.Tables); err != nil {
			nstest.Missing(t, err.Error())
		}
	}
}

// dropForward makes both families of an iptables drop what they forward.
func dropForward(t *testing.T, backend string) {
	t.Helper()
	iptablesRun(t, "iptables-"+backend+" -P FORWARD DROP")
	iptablesRun(t, "ip6tables-"+backend+" -P FORWARD DROP")
}

// awaitForward waits until a change of FORWARD is signalled.
func awaitForward(t *testing.T, p *Proxy) {
	t.Helper()
	for told := false; !told; told = p.watch.forward.Load() {
		awaitChanged(t, p, "FORWARD")
	}
}

// through probes a port of the VIP in both families, over TCP and UDP.
func (l *lab) through(t *testing.T, port uint16, want string) {
	t.Helper()
	for family := range state.SetID(2) {
		for _, network := range []string{"tcp", "udp"} {
			to := netip.AddrPortFrom(proxytest.At("vip", family), port)
			if got := l.Probe(l.Client, network, to, want); got != want {
				t.Errorf("client to %s %s: %s; want %s", network, to, got, want)
			}
		}
	}
}

// A node's FORWARD begins to drop, as when Docker starts: connections to a VIP
// fail, until the next Set. Others stay dropped, and so do ours that a rule drops
// for a reason.
func TestForwardDrops(t *testing.T) {
	for _, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			withIPTables(t, func(t *testing.T, _ string) {
				if backend == "legacy" {
					legacyOrSkip(t)
				}
				forwardDrops(t, backend)
			})
		})
	}
}

func forwardDrops(t *testing.T, backend string) {
	l, p := newLab(t), newProxy(t)
	s := proxytest.PacketState(LocalClients{})
	mustSet(t, p, s)
	l.through(t, proxytest.PortLocal, "pod1 saw client")

	dropForward(t, backend)
	l.through(t, proxytest.PortLocal, "silence")
	if backend == "nft" {
		awaitForward(t, p)
	} else {
		p.Recheck() // legacy tables send no notification
	}
	mustSet(t, p, s)
	l.through(t, proxytest.PortLocal, "pod1 saw client")
	l.through(t, proxytest.PortRemote, "remote saw node")
	names := []string{"iptables-" + backend, "ip6tables-" + backend}
	if st := p.Status(); !slices.Equal(st.ForwardOpened, names) || st.ForwardError != "" {
		t.Errorf("opened %q, %q; want %q", st.ForwardOpened, st.ForwardError, names)
	}
	direct := netip.AddrPortFrom(proxytest.At("pod1", 0), 8080)
	if got := l.Probe(l.Client, "tcp", direct, "silence"); got != "silence" {
		t.Errorf("client to %s: %s; it is not for a VIP, and was dropped before", direct, got)
	}

	for _, name := range names {
		iptablesRun(t, name+" -A FORWARD -p tcp --dport 8080 -j DROP")
	}
	p.Recheck()
	mustSet(t, p, s)
	for family := range state.SetID(2) {
		to := netip.AddrPortFrom(proxytest.At("vip", family), proxytest.PortLocal)
		if got := l.Probe(l.Client, "tcp", to, "silence"); got != "silence" {
			t.Errorf("client to tcp %s: %s, past another program's rule", to, got)
		}
		if got := l.Probe(l.Client, "udp", to, "pod1 saw client"); got != "pod1 saw client" {
			t.Errorf("client to udp %s: %s", to, got)
		}
	}
}

// Both iptables drop: a packet must pass the one and the other, whichever of them
// the kubelet and kube-proxy use.
func TestForwardDropsTwice(t *testing.T) {
	withIPTables(t, func(t *testing.T, _ string) {
		legacyOrSkip(t)
		l, p := newLab(t), newProxy(t)
		iptablesRun(t, "iptables-nft -t mangle -N KUBE-IPTABLES-HINT")
		dropForward(t, "legacy")
		dropForward(t, "nft")
		mustSet(t, p, proxytest.PacketState(LocalClients{}))
		l.through(t, proxytest.PortLocal, "pod1 saw client")
		if got, want := p.Status().ForwardOpened,
			[]string{"iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"}; !slices.Equal(got, want) {
			t.Errorf("opened %q, want %q", got, want)
		}
	})
}

// Another program flushes FORWARD, and later every table: both are signalled and repaired.
func TestForwardIsRepaired(t *testing.T) {
	withIPTables(t, func(t *testing.T, _ string) {
		l, p := newLab(t), newProxy(t)
		dropForward(t, "nft")
		s := proxytest.PacketState(LocalClients{})
		mustSet(t, p, s)
		for _, flush := range []string{"iptables-nft -F FORWARD", "ip6tables-nft -F",
			"iptables-nft -F FANFARE-FORWARD"} {
			drain(t, p)
			iptablesRun(t, flush)
			awaitForward(t, p)
			mustSet(t, p, s)
			l.through(t, proxytest.PortLocal, "pod1 saw client")
		}
		drain(t, p)
		proxytest.NFT(t, "flush ruleset")
		dropForward(t, "nft")
		awaitForward(t, p)
		mustSet(t, p, s)
		l.through(t, proxytest.PortLocal, "pod1 saw client")
	})
}

// drain takes all notifications so far, such as those of the Proxy's own changes of
// iptables. They come in order: after that of a change of our table none remains. It
// returns whether one was about FORWARD.
func drain(t *testing.T, p *Proxy) (forward bool) {
	t.Helper()
	const mark = "add set inet fanfare marker { type ipv4_addr; }\n"
	proxytest.NFT(t, mark+"delete set inet fanfare marker\n")
	for !p.watch.take() {
		awaitChanged(t, p, "a change of our own table")
	}
	forward = p.watch.takeForward()
	select {
	case <-p.Changed():
	default:
	}
	return forward
}

// kube-proxy changes its chains in the same table all the time. That causes no signal.
func TestOtherChainsAreNotForward(t *testing.T) {
	withIPTables(t, func(t *testing.T, _ string) {
		p := newProxy(t)
		mustSet(t, p, proxytest.PacketState(LocalClients{}))
		iptablesRun(t, "iptables-nft -A INPUT -i lo -j ACCEPT") // makes the table, which counts
		drain(t, p)
		iptablesRun(t, "iptables-nft -N KUBE-FORWARD")
		iptablesRun(t, "iptables-nft -A KUBE-FORWARD -j RETURN")
		iptablesRun(t, "iptables-nft -t nat -P PREROUTING ACCEPT")
		if drain(t, p) {
			t.Error("a change of other chains is taken for one of FORWARD")
		}
	})
}

// What the rules were before is what they are after Cleanup, to the letter.
func TestForwardCleanup(t *testing.T) {
	withIPTables(t, func(t *testing.T, _ string) {
		legacyOrSkip(t)
		for _, i := range iptables.Programs {
			iptablesRun(t, i.Name+" -P FORWARD DROP")
			iptablesRun(t, i.Name+" -A FORWARD -i docker0 -j ACCEPT")
			iptablesRun(t, i.Name+" -A FORWARD -j DROP")
		}
		before := allSaved(t)
		p := newProxy(t)
		mustSet(t, p, proxytest.PacketState(LocalClients{}))
		if strings.Count(allSaved(t), "-j "+iptables.ForwardChain) != len(iptables.Programs) {
			t.Errorf("not every iptables has a jump:\n%s", allSaved(t))
		}
		if err := Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after := allSaved(t); after != before {
			t.Errorf("after Cleanup\n%s\nbefore\n%s", after, before)
		}
	})
}

// A pool that goes takes its rules along, but not those of an address that is still
// forwarded.
func TestForwardFollowsPools(t *testing.T) {
	withIPTables(t, func(t *testing.T, _ string) {
		iptablesRun(t, "iptables-nft -P FORWARD DROP")
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{})
		mustSet(t, p, s)
		for _, tt := range []struct {
			state State
			want  string
		}{
			{s, "192.0.2.0/24"},
			{State{Node: "n1", VIPs: s.VIPs}, "192.0.2.1"},
			{State{Node: "n1", VIPs: s.VIPs, Owned: proxytest.Prefixes("192.0.2.128/25", "198.51.100.0/24")},
				"192.0.2.1 192.0.2.128/25 198.51.100.0/24"},
			{State{Node: "n1", Owned: proxytest.Prefixes("198.51.100.0/24")}, "198.51.100.0/24"},
			{State{Node: "n1"}, ""},
		} {
			mustSet(t, p, tt.state)
			var rules []string
			for _, m := range regexp.MustCompile("-A "+iptables.ForwardChain+
				` .*--ctorigdst (\S+) `).FindAllStringSubmatch(allSaved(t), -1) {
				if strings.Contains(m[1], ".") {
					rules = append(rules, m[1])
				}
			}
			if got := strings.Join(rules, " "); got != tt.want {
				t.Errorf("rules for %q, want %q", got, tt.want)
			}
		}
	})
}

// What a process left behind is removed by the next, if there are no pools now.
func TestForwardRemovedByNextProcess(t *testing.T) {
	withIPTables(t, func(t *testing.T, _ string) {
		iptablesRun(t, "iptables-nft -P FORWARD DROP")
		p := newProxy(t)
		mustSet(t, p, proxytest.PacketState(LocalClients{}))
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(allSaved(t), iptables.ForwardChain) {
			t.Error("no rules are left by a process that ends")
		}
		mustSet(t, newProxy(t), State{Node: "n1"})
		if save := allSaved(t); strings.Contains(save, iptables.ForwardChain) {
			t.Errorf("rules of before remain:\n%s", save)
		}
	})
}

// allSaved is what all iptables show, without the times in comments and the
// packets counted.
func allSaved(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, i := range iptables.Programs {
		if has, err := i.Has(); !has || err != nil {
			continue
		}
		save, err := i.Save(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(save) {
			if line[0] != '#' {
				line, _, _ = strings.Cut(line, "[")
				fmt.Fprintln(&b, strings.TrimSpace(line))
			}
		}
	}
	return b.String()
}

// While FORWARD cannot be opened, addresses are forwarded, it is said, flows to pods count as
// blocked, and it is tried until it can be.
func TestForwardFails(t *testing.T) {
	withIPTables(t, func(t *testing.T, lock string) {
		legacyOrSkip(t)
		l, p := newLab(t), newProxy(t)
		dropForward(t, "legacy")
		held, err := os.OpenFile(lock, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		s := proxytest.PacketState(LocalClients{})
		mustSet(t, p, s)
		checkKernel(t, s)
		if e := p.Status().ForwardError; !strings.Contains(e, "iptables-legacy-restore") {
			t.Errorf("FORWARD was opened against a lock, or it is not said: %q", e)
		}
		for family, program := range []string{"iptables-legacy", "ip6tables-legacy"} {
			b, vip := p.Blockade(), proxytest.At("vip", state.SetID(family))
			if why := b.Why(vip, obstacle.ToPods); !strings.HasPrefix(why,
				"chain FORWARD of "+program+" drops traffic") || b.Why(vip, obstacle.ToOtherNodes) == "" ||
				!b.BlocksForwarding(vip) {
				t.Errorf("to pods of this node: %q; to others: %q", why, b.Why(vip, obstacle.ToOtherNodes))
			}
			if why := b.Why(vip, obstacle.ToThisNode); why != "" {
				t.Errorf("to this node's processes, which FORWARD does not concern: %q", why)
			}
		}
		if err := unix.Flock(int(held.Fd()), unix.LOCK_UN); err != nil {
			t.Fatal(err)
		}
		for p.Status().ForwardError != "" || p.Blockade() != nil {
			awaitChanged(t, p, "the next attempt, and the end of the blockade")
			mustSet(t, p, s)
		}
		l.through(t, proxytest.PortLocal, "pod1 saw client")
	})
}

// A Set that changes endpoints starts no program, whatever there is of iptables.
func TestForwardCostsNothing(t *testing.T) {
	withIPTables(t, func(t *testing.T, _ string) {
		iptablesRun(t, "iptables-nft -P FORWARD DROP")
		count := countPrograms(t)
		p := newProxy(t)
		one, two := proxytest.PacketState(LocalClients{}), proxytest.PacketState(LocalClients{})
		mustSet(t, p, one)
		drain(t, p) // what its own rules told
		first := count()
		if first == 0 {
			t.Error("the first Set looked at nothing")
		}
		for range 50 {
			mustSet(t, p, two)
			mustSet(t, p, one)
		}
		if n := count(); n != first {
			t.Errorf("%d programs started for changes of VIPs", n-first)
		}
	})
}

// countPrograms puts programs in front of iptables' own that note that they were
// started, and returns how often they were.
func countPrograms(t *testing.T) func() int {
	t.Helper()
	dir := t.TempDir()
	note := filepath.Join(dir, "note")
	for _, i := range iptables.Programs {
		for _, suffix := range []string{"", "-save", "-restore"} {
			real, err := exec.LookPath(i.Name + suffix)
			if err != nil {
				t.Fatal(err)
			}
			script := fmt.Sprintf("#!/bin/sh\necho >>%s\nexec %s \"$@\"\n", note, real)
			if err := os.WriteFile(filepath.Join(dir, i.Name+suffix), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Setenv("PATH", dir+":"+os.Getenv("PATH")); err != nil {
		t.Fatal(err)
	}
	return func() int {
		b, err := os.ReadFile(note)
		if err != nil {
			t.Fatal(err)
		}
		return len(b)
	}
}
