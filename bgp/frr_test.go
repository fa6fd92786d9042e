package bgp

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

const frrDaemons = "/usr/lib/frr"

// The router is 10.0.0.1; this node is 10.0.0.2 to it over eBGP, and 10.0.0.3
// over iBGP without IPv6.
const frrConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.2 remote-as 65010
 neighbor 10.0.0.2 timers 1 3
 neighbor 10.0.0.2 timers connect 1
 neighbor 10.0.0.3 remote-as 65001
 neighbor 10.0.0.3 timers 1 3
 neighbor 10.0.0.3 timers connect 1
 address-family ipv6 unicast
  neighbor 10.0.0.2 activate
`

// An frr is a real FRR router in a namespace of its own.
type frr struct {
	t       *testing.T
	ns      *nstest.NS
	dir     string
	conf    string
	daemons []string
	stop    chan struct{}
	stopped chan struct{}

	mu     sync.Mutex
	table  map[string]string // the kernel's BGP routes: prefix to next hop
	events []string          // what happened to the table
}

func startFRR(t *testing.T) *frr {
	t.Helper()
	return startFRRWith(t, frrConfig)
}

// startFRRWith starts one with a configuration of its own, and more daemons than
// zebra and bgpd. It skips, or fails on CI, where FRR is not installed or cannot run.
func startFRRWith(t *testing.T, conf string, more ...string) *frr {
	t.Helper()
	r := newFRR(t, "router", conf, more...)
	r.uplink()
	r.run()
	return r
}

// uplink joins the router and this node.
func (r *frr) uplink() {
	r.t.Helper()
	node := nstest.Node(r.t)
	nstest.Link(r.t, node, "uplink", r.ns, "eth0")
	node.Addr("uplink", "10.0.0.2/24", "10.0.0.3/24", "fd00::2/64")
	r.ns.Addr("eth0", "10.0.0.1/24", "fd00::1/64")
}

// newFRR is a router that has no links yet, and does not run.
func newFRR(t *testing.T, name, conf string, more ...string) *frr {
	t.Helper()
	if _, err := os.Stat(filepath.Join(frrDaemons, "bgpd")); err != nil {
		nstest.Missing(t, fmt.Sprintf("FRR is not installed: %v", err))
	}
	if os.Geteuid() != 0 {
		nstest.Missing(t, "FRR needs root")
	}
	return &frr{t: t, ns: nstest.New(t, name), dir: frrDir(t), table: map[string]string{},
		conf: conf, daemons: slices.Concat([]string{"zebra"}, more, []string{"bgpd"})}
}

// run starts the router, until the test ends.
func (r *frr) run() {
	r.t.Helper()
	r.ns.Forward()
	r.watchKernel()
	r.start()
	r.t.Cleanup(func() { r.kill() })
}

// frrDir is a directory that FRR's own user can write to; t.TempDir is not.
func frrDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "frr")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	u, err := user.Lookup("frr")
	must(t, err)
	uid, err := strconv.Atoi(u.Uid)
	must(t, err)
	gid, err := strconv.Atoi(u.Gid)
	must(t, err)
	must(t, os.Chown(dir, uid, gid))
	return dir
}

// start runs the daemons, which die with this process, and configures them.
func (r *frr) start() {
	r.t.Helper()
	r.stop, r.stopped = make(chan struct{}), make(chan struct{})
	started := make(chan error, 1)
	go func() {
		defer close(r.stopped)
		// The thread that starts a process with Pdeathsig must outlive it.
		r.ns.Do(func() {
			var cmds []*exec.Cmd
			var err error
			for _, daemon := range r.daemons {
				cmd := r.daemon(daemon)
				if err = cmd.Start(); err != nil {
					break
				}
				cmds = append(cmds, cmd)
				// bgpd that does not find zebra at once waits 10 s.
				r.awaitFile(daemon + ".vty")
			}
			started <- err
			<-r.stop
			for _, cmd := range cmds {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
		})
	}()
	must(r.t, <-started)
	conf := filepath.Join(r.dir, "router.conf")
	must(r.t, os.WriteFile(conf, []byte(r.conf), 0o644))
	eventually(r.t, "FRR's daemons", func() bool { return strings.Contains(r.vtysh("-c", "show daemons"), "bgpd") })
	eventually(r.t, "FRR's configuration", func() bool {
		r.vtysh("-f", conf)
		return strings.Contains(r.vtysh("-c", "show running-config"), lastLine(r.conf))
	})
	r.awaitReach()
}

// awaitReach waits until bgpd has learned from zebra how to reach the neighbours on its links,
// and so tries to connect to them. The event of that trial ends, without a NOTIFICATION, the
// session that the other end has opened in that very moment (FRR 8.4:
// ConnectRetry_timer_expired in Established); no test here is about that.
func (r *frr) awaitReach() {
	r.t.Helper()
	near := r.near()
	eventually(r.t, "FRR reaches its neighbours", func() bool {
		says := r.vtysh("-c", "show bgp vrf all nexthop")
		return !slices.ContainsFunc(near, func(a netip.Addr) bool {
			return !strings.Contains(says, " "+a.String()+" valid ")
		})
	})
}

var neighbourLine = regexp.MustCompile(`(?m)^\s*neighbor (\S+) remote-as`)

// near are the neighbours of the configuration that are on the router's links, and to which
// it tries to connect.
func (r *frr) near() (near []netip.Addr) {
	r.t.Helper()
	var addrs []netlink.Addr
	var err error
	r.ns.Do(func() { addrs, err = netlink.AddrList(nil, unix.AF_UNSPEC) })
	must(r.t, err)
	for _, m := range neighbourLine.FindAllStringSubmatch(r.conf, -1) {
		neighbour, err := netip.ParseAddr(m[1])
		if err != nil || strings.Contains(r.conf, "neighbor "+m[1]+" passive") {
			continue // an interface, or a peer group; or one that is waited for
		}
		if slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.Contains(neighbour.AsSlice()) }) {
			near = append(near, neighbour)
		}
	}
	return near
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// awaitFile waits until a daemon has made its socket, but not for ever: that it
// runs is checked later.
func (r *frr) awaitFile(name string) {
	for begin := time.Now(); time.Since(begin) < 30*time.Second; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(r.dir, name)); err == nil {
			return
		}
	}
}

func (r *frr) kill() {
	close(r.stop)
	<-r.stopped
	sockets, _ := filepath.Glob(filepath.Join(r.dir, "*.vty"))
	for _, file := range append(sockets, filepath.Join(r.dir, "zserv.api")) {
		_ = os.Remove(file) // so that start does not take them for new ones
	}
}

func (r *frr) daemon(name string) *exec.Cmd {
	args := []string{"--vty_socket", r.dir, "-z", r.dir + "/zserv.api", "-i", r.dir + "/" + name + ".pid",
		"-u", "frr", "-g", "frr", "-f", "/dev/null", "--log", "file:" + r.dir + "/frr.log", "-A", "127.0.0.1"}
	switch name {
	case "zebra":
		args = append(args, "-s", "1048576")
	case "bgpd":
		args = append(args, "-p", "179")
	}
	cmd := exec.Command(filepath.Join(frrDaemons, name), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (r *frr) vtysh(args ...string) string {
	_ = os.WriteFile(filepath.Join(r.dir, "vtysh.conf"), nil, 0o644)
	out, _ := exec.Command("vtysh", append([]string{"--vty_socket", r.dir, "--config_dir", r.dir}, args...)...).
		CombinedOutput()
	return string(out)
}

// watchKernel follows the router's routing table.
func (r *frr) watchKernel() {
	updates := make(chan netlink.RouteUpdate, 1000)
	done := make(chan struct{})
	r.t.Cleanup(func() { close(done) })
	var err error
	r.ns.Do(func() { err = netlink.RouteSubscribe(updates, done) })
	must(r.t, err)
	go func() {
		for u := range updates {
			if u.Protocol == unix.RTPROT_BGP && u.Dst != nil {
				r.record(u)
			}
		}
	}()
}

func (r *frr) record(u netlink.RouteUpdate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u.Type == unix.RTM_DELROUTE {
		delete(r.table, u.Dst.String())
		r.events = append(r.events, "del "+u.Dst.String())
		return
	}
	hop := u.Gw.String()
	if via, ok := u.Via.(*netlink.Via); ok && u.Gw == nil {
		hop = "inet6 " + via.Addr.String() // as ip route says it
	}
	r.table[u.Dst.String()] = hop
	r.events = append(r.events, "add "+u.Dst.String())
}

// kernel is the router's table as text.
func (r *frr) kernel() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for dst, hop := range r.table {
		lines = append(lines, dst+" via "+hop)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// happened returns the events since it was called last.
func (r *frr) happened() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

func frrSession(source string) Session {
	return Session{
		Name:            "tor1",
		PeerAddress:     netip.MustParseAddr("10.0.0.1"),
		PeerASN:         65001,
		SourceAddress:   netip.MustParseAddr(source),
		HoldTime:        3 * time.Second,
		ConnectTime:     time.Second,
		GracefulRestart: true,
	}
}

const frrWant = "192.0.2.1/32 via 10.0.0.2\n2001:db8::1/128 via fd00::2"

func frrState(session Session, more ...string) State {
	st := state([]Session{session}, routes(append([]string{"192.0.2.1/32", "2001:db8::1/128"}, more...)...))
	st.NextHop6 = netip.MustParseAddr("fd00::2")
	return st
}

// A real router: both families over one IPv4 session, fast changes, restarts without a
// change of routes, a withdrawal, a router that returns.
func TestFRR(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRR(t)
		conf := frrSession("10.0.0.2")

		// Before its first own attempt FRR takes no connection.
		eventually(t, "FRR waiting", func() bool {
			return strings.Contains(r.vtysh("-c", "show bgp neighbors 10.0.0.2"), "BGP state = Active")
		})
		s := newServer(t, Options{})
		begin := time.Now()
		have, err := s.Set(t.Context(), frrState(conf))
		must(t, err)
		if got := joined(have); got != "192.0.2.1/32 2001:db8::1/128" {
			t.Errorf("have %s", got)
		}
		took := within(t, time.Minute, "routes", func() bool { return r.kernel() == frrWant })
		t.Logf("from Set to both routes in the router's kernel, session down before: %s (session up after %s)",
			took.Round(time.Millisecond), s.sessionStatus("tor1").Since.Sub(begin).Round(time.Millisecond))
		eventually(t, "End-of-RIB", func() bool { return !s.sessionStatus("tor1").EndOfRIB.IsZero() })

		t.Run("change", func(t *testing.T) { frrChange(t, r, s, conf) })
		s = restartFRR(t, r, s, conf, "Close(Restart)", func(s *Server) { must(t, s.Close(t.Context(), Restart)) })
		s = restartFRR(t, r, s, conf, "SIGKILL", abandon)
		t.Run("router returns", func(t *testing.T) { frrReturns(t, r, s) })

		r.happened()
		must(t, s.Close(t.Context(), Withdraw))
		took = within(t, 20*time.Second, "withdrawal", func() bool { return r.kernel() == "" })
		t.Logf("from Close(Withdraw) done to no route in the kernel: %s", took.Round(100*time.Microsecond))
	})
}

// iBGP, with a router that takes no IPv6 routes: a restart that it does not
// notice, and one without graceful restart, which it does.
func TestFRRInternal(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRR(t)
		s := newServer(t, Options{})
		conf := frrSession("10.0.0.3")
		conf.LocalASN = 65001
		_, err := s.Set(t.Context(), frrState(conf))
		must(t, err)
		const want = "192.0.2.1/32 via 10.0.0.3"
		eventually(t, "routes", func() bool { return r.kernel() == want })
		if out := r.vtysh("-c", "show bgp ipv4 unicast 192.0.2.1/32"); !strings.Contains(out, "localpref 100") ||
			!strings.Contains(out, "internal") {
			t.Errorf("router says:\n%s", out)
		}
		r.happened()
		must(t, s.Close(t.Context(), Restart))

		s = newServer(t, Options{Restarting: true})
		_, err = s.Set(t.Context(), frrState(conf))
		must(t, err)
		eventually(t, "synced", func() bool { _, ok := s.Synced(); return ok })
		_, err = s.Set(t.Context(), frrState(conf, "198.51.100.99/32"))
		must(t, err)
		eventually(t, "route after the restart",
			func() bool { return strings.Contains(r.kernel(), "198.51.100.99/32") })
		if events := r.happened(); !slices.Equal(events, []string{"add 198.51.100.99/32"}) {
			t.Errorf("restart: %v", events)
		}
		st := s.sessionStatus("tor1")
		if st.Flaps != 0 || st.LeftOut != 1 ||
			!strings.Contains(st.Omissions[0].Reason, "the router does not take IPv6 routes") {
			t.Errorf("status: %+v", st)
		}

		conf.GracefulRestart = false
		_, err = s.Set(t.Context(), frrState(conf))
		must(t, err)
		eventually(t, "routes without graceful restart",
			func() bool { return s.sessionStatus("tor1").Advertised == 1 && r.kernel() == want })
		must(t, s.Close(t.Context(), Restart))
		took := within(t, 20*time.Second, "routes gone", func() bool { return r.kernel() == "" })
		t.Logf("from Close(Restart) without graceful restart to no route: %s", took.Round(100*time.Microsecond))
	})
}

// One router of two dead: the living one hears everything at once, also after a
// restart, and the wait for the dead one ends with its RestartTime.
func TestFRROneOfTwoRoutersDown(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRR(t)
		alive := frrSession("10.0.0.2")
		dead := alive
		// no host answers ARP
		dead.Name, dead.PeerAddress, dead.RestartTime = "tor2", netip.MustParseAddr("10.0.0.9"), 4*time.Second
		want := frrState(alive)
		want.Sessions = append(want.Sessions, dead)

		s := newServer(t, Options{})
		_, err := s.Set(t.Context(), want)
		must(t, err)
		eventually(t, "routes", func() bool { return r.kernel() == frrWant })
		r.happened()
		must(t, s.Close(t.Context(), Restart))

		s = newServer(t, Options{Restarting: true})
		begin := time.Now()
		_, err = s.Set(t.Context(), want)
		must(t, err)
		eventually(t, "End-of-RIB", func() bool { return !s.sessionStatus("tor1").EndOfRIB.IsZero() })
		end := s.sessionStatus("tor1").EndOfRIB
		if d := end.Sub(s.sessionStatus("tor1").Since); d > deferralTime {
			t.Errorf("End-of-RIB %s after the session was up", d)
		}
		eventually(t, "synced", func() bool { _, ok := s.Synced(); return ok })
		at, _ := s.Synced()
		t.Logf("End-of-RIB to the living router after %s, synced after %s; dead: %s",
			end.Sub(begin).Round(time.Millisecond),
			at.Sub(begin).Round(time.Millisecond), s.sessionStatus("tor2").LastError)
		if at.Sub(begin) < 3900*time.Millisecond {
			t.Errorf("synced after %s, before the dead router forgot us", at.Sub(begin))
		}
		if events := r.happened(); len(events) != 0 {
			t.Errorf("the router's kernel: %v", events)
		}
	})
}
