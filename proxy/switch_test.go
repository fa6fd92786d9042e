package proxy

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// traces says which of our rules are in the kernel.
func traces(t *testing.T) (found []string) {
	t.Helper()
	if slices.Contains(strings.Split(listTables(t), "\n"), "table inet fanfare") {
		found = append(found, "table")
	}
	for _, i := range iptables.Installed() {
		save, err := exec.Command(i.Name + "-save").Output()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(save), "FANFARE-") || strings.Contains(string(save), "FAN-") {
			found = append(found, i.Name)
		}
	}
	if len(proxytest.IPSets(t)) > 0 {
		found = append(found, "sets")
	}
	return found
}

// The next mode takes over without losing a connection, and leaves nothing of the one
// before: from one mode to the other, and from one iptables to the other.
func TestModesFollowOneAnother(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		everything := os.Getenv("PATH")
		s := proxytest.PacketState(LocalClients{})
		nft, legacy := []string{"iptables-nft", "ip6tables-nft", "sets"},
			[]string{"iptables-legacy", "ip6tables-legacy", "sets"}
		var conn net.Conn
		for i, step := range []struct {
			mode    Mode
			backend string // which others do not see
			want    []string
		}{
			{ModeNFTables, "", []string{"table"}},
			{ModeIPTables, "iptables-nft", nft},
			{ModeNFTables, "", []string{"table"}},
			{ModeIPTables, "iptables-legacy", legacy},
			{ModeNFTables, "", []string{"table"}},
		} {
			if err := os.Setenv("PATH", everything); err != nil {
				t.Fatal(err)
			}
			if step.backend != "" {
				onlyPrograms(t, step.backend)
			}
			testMode = step.mode
			p := newProxy(t)
			if want := []netip.Addr{proxytest.At("vip", 0), proxytest.At("vip", 1)}; i > 0 &&
				!slices.Equal(p.Adopted(), want) {
				t.Errorf("step %d adopted %v, want %v", i, p.Adopted(), want)
			}
			stop, lost := make(chan struct{}), make(chan string)
			if i > 0 {
				go l.knock(stop, lost)
			}
			mustSet(t, p, s)
			if i == 0 {
				conn = l.Connect(l.Client, "tcp", 0, netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortRemote))
			}
			if got := l.Ask(conn); got != "remote saw node" {
				t.Errorf("step %d: an open connection: %s", i, got)
			}
			if i > 0 {
				close(stop)
				if bad := <-lost; bad != "" {
					t.Errorf("step %d, while %s took over: %s", i, step.mode, bad)
				}
			}
			if err := os.Setenv("PATH", everything); err != nil {
				t.Fatal(err)
			}
			if got := traces(t); !slices.Equal(got, step.want) {
				t.Errorf("step %d: %s leaves %v, want %v", i, step.mode, got, step.want)
			}
			if st := p.Status(); st.Mode != step.mode || st.ModeError != "" || st.ModeReason != "" {
				t.Errorf("step %d: status %+v", i, st)
			}
			p.Close()
		}
		if err := Cleanup(t.Context()); err != nil {
			t.Error(err)
		}
		if got := traces(t); len(got) > 0 {
			t.Errorf("cleanup left %v", got)
		}
	})
}

// What each mode leaves, Cleanup takes away, of both iptables.
func TestCleanupOfIPTables(t *testing.T) {
	onIPTables(t, func(t *testing.T) {
		p := newProxy(t)
		mustSet(t, p, proxytest.PacketState(LocalClients{}))
		p.Close()
		if got := traces(t); len(got) != 3 {
			t.Errorf("there are %v", got)
		}
		if err := Cleanup(t.Context()); err != nil {
			t.Error(err)
		}
		if got := traces(t); len(got) > 0 {
			t.Errorf("cleanup left %v", got)
		}
	})
}

// Auto takes nftables, and without its program the iptables that there is, and says
// why. Without either it says what is missing of both.
func TestModeAuto(t *testing.T) {
	for _, tc := range []struct {
		name     string
		programs []string
		mode     Mode
		used     []string
		why      string // in the status, or else in the error
	}{
		{"all", []string{"nft", "iptables-nft-restore", "iptables-nft-save"}, ModeNFTables, nil, ""},
		{"no nft", []string{"iptables-nft-restore", "iptables-nft-save"}, ModeIPTables, []string{"iptables-nft"},
			"program nft"},
		{"old names", []string{"iptables-restore", "iptables-save", "ip6tables-restore", "ip6tables-save"},
			ModeIPTables, []string{"iptables", "ip6tables"}, "program nft"},
		{"nothing", nil, "", nil, "no program iptables-restore"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			proxytest.InNamespace(t, func(t *testing.T) {
				keepPrograms(t, tc.programs...)
				p, err := New(t.Context(), Options{Mode: ModeAuto})
				if tc.mode == "" {
					if err == nil || !strings.Contains(err.Error(), tc.why) ||
						!strings.Contains(err.Error(), "program nft") {
						t.Errorf("%v; want one that says what is missing", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				st := p.Status()
				if st.Mode != tc.mode || !slices.Equal(st.Programs, tc.used) ||
					!strings.Contains(st.ModeReason, tc.why) || (tc.why == "") != (st.ModeReason == "") {
					t.Errorf("mode %s, programs %v, because %q; want %s, %v, %q", st.Mode, st.Programs, st.ModeReason,
						tc.mode, tc.used, tc.why)
				}
				s := proxytest.PacketState(LocalClients{})
				if len(tc.used) == 1 {
					// One family without iptables does not stop the other.
					if err := p.Set(t.Context(), s); err == nil || !strings.Contains(err.Error(), "2001:db8::1") {
						t.Errorf("a VIP of a family without iptables: %v", err)
					}
					s.VIPs = proxytest.VIPsOf(s.VIPs.At(0))
				}
				mustSet(t, p, s)
			})
		})
	}
}

// What others do in iptables is none of our business, nor is what we do ourselves
// news to us.
func TestOthersDoNotDisturbIPTables(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		onlyPrograms(t, "iptables-nft")
		testMode = ModeIPTables
		p := newProxy(t)
		w := proxytest.NewWorld(3)
		s := State{Node: "n1"}
		for range 5 {
			s = w.Next(s)
			mustSet(t, p, s)
		}
		iptablesRun(t, "iptables-nft -t nat -N KUBE-SERVICES")
		iptablesRun(t, "iptables-nft -t nat -A KUBE-SERVICES -d 10.96.0.1 -j ACCEPT")
		iptablesRun(t, "iptables-nft -t mangle -A PREROUTING -j ACCEPT")
		for told := false; !told; told = p.watch.dirty.Load() {
			// This notification comes after all earlier ones.
			iptablesRun(t, "iptables-nft -t nat -A POSTROUTING -j KUBE-SERVICES")
			awaitChanged(t, p, "a change")
		}
		before := p.Status()
		mustSet(t, p, s)
		if got := p.Status(); got.Repairs != before.Repairs || got.Generation != before.Generation {
			t.Errorf("repaired %q", got.Found)
		}
	})
}

// A client comes back to its backend, over every protocol apart, until that goes; then
// it stays with the next one, even if the first comes back.
func TestAffinityOfIPTables(t *testing.T) {
	onIPTables(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		stateWith := func(names ...string) State {
			s := scheduleState(Random, podBackends(names...), 80)
			for v := range s.VIPs.All() {
				for i := range v.Frontends {
					fe := &v.Frontends[i]
					fe.Affinity, fe.External.Remote = time.Hour, Masquerade
				}
			}
			return s
		}
		all := []string{"pod1", "pod2", "pod3", "remote"}
		mustSet(t, p, stateWith(all...))
		for family := range state.SetID(2) {
			to := netip.AddrPortFrom(proxytest.At("vip", family), 80)
			for network := range networks {
				mustSet(t, p, stateWith(all...))
				stays := func(when string) string {
					t.Helper()
					first := l.who(l.Client, network, 0, to)
					for range 8 {
						if who := l.who(l.Client, network, 0, to); who != first {
							t.Errorf("%s %s, %s: %s after %s", network, to, when, who, first)
						}
					}
					return first
				}
				first := stays("at first")
				others := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == first })
				mustSet(t, p, stateWith(others...))
				checkKernel(t, stateWith(others...))
				second := stays("without " + first)
				mustSet(t, p, stateWith(all...))
				if third := stays("with " + first + " again"); third != second {
					t.Errorf("%s %s: %s came back and took the client of %s", network, to, third, second)
				}
			}
		}
	})
}

// Without the right to change the kernel, New says so.
func TestModeWithoutRights(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		proxytest.WithoutRights(t)
		if _, err := New(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("New without rights: %v", err)
		}
	})
}
