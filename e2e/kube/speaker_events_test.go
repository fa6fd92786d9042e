package kube

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
)

// routedNode is a node and its router, with addresses of one interface.
var routedNode = strings.NewReplacer("127.0.0.1", "198.51.100.1", "127.0.0.9, ",
	"198.51.100.9, sourceAddress: 198.51.100.1, ").Replace(oneNode)

// bgpd starts a real router for the BGPPeer of routedNode. It ends with the test at the
// latest.
func (f *fanfare) bgpd(lines ...string) *exec.Cmd {
	f.Helper()
	const program = "/usr/lib/frr/bgpd"
	if _, err := os.Stat(program); err != nil || os.Geteuid() != 0 {
		nstest.Missing(f.T, fmt.Sprintf("FRR is not installed, or we are not root: %v", err))
	}
	dir := frrDir(f.T)
	config := filepath.Join(dir, "bgpd.conf")
	must(f.T, os.WriteFile(config, []byte(`
router bgp 65000
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 198.51.100.1 remote-as 65001
 neighbor 198.51.100.1 passive
 neighbor 198.51.100.1 disable-connected-check
 `+strings.Join(lines, "\n ")+"\n"), 0o644))
	cmd := exec.Command(program, "--no_zebra", "--no_kernel", "-l", "198.51.100.9", "-p", "179", "-A", "127.0.0.1",
		"-P", "0", "--vty_socket", dir, "-i", filepath.Join(dir, "bgpd.pid"), "-u", "frr", "-g", "frr", "-f", config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(f.T, cmd.Start())
	f.Cleanup(func() {
		_ = cmd.Process.Kill() // It may be gone already.
		_ = cmd.Wait()
	})
	return cmd
}

// frrDir returns a directory that FRR's user can write to.
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

// kubectl runs kubectl as an administrator.
func (f *fanfare) kubectl(args ...string) (string, error) {
	path := filepath.Join(f.dir, "admin.kubeconfig")
	if _, err := os.Stat(path); err != nil {
		must(f.T, f.WriteKubeconfig(path, "admin", "system:masters"))
	}
	cmd := exec.CommandContext(f.Context(), f.tools, append([]string{"kubectl"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+path, "HOME="+f.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// awaitEvent waits until kubectl describe shows an Event of the speaker with the reason and
// this text in its message.
func (f *fanfare) awaitEvent(object, reason, message string) {
	f.Helper()
	await(f.T, 60*time.Second, object+" "+reason, func() error {
		out, err := f.kubectl("describe", object)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if strings.Contains(line, reason) && strings.Contains(line, "fanfare.io/speaker") &&
				strings.Contains(line, message) {
				return nil
			}
		}
		return fmt.Errorf("no %q with %q in\n%s", reason, message, out)
	})
}

// events returns the reasons of an object's Events, each with its count.
func (f *fanfare) events(object string) (reasons []string) {
	f.Helper()
	out, err := f.kubectl("events", "--for", object, "-o",
		`jsonpath={range .items[*]}{.reportingComponent} {.reason} {.series.count}{"\n"}{end}`)
	must(f.T, err)
	for line := range strings.Lines(out) {
		if reason, ours := strings.CutPrefix(strings.TrimSpace(line), "fanfare.io/speaker "); ours {
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

// awaitEventCount waits until an object's Events of a reason have this count in total.
func (f *fanfare) awaitEventCount(object, reason string, want int) {
	f.Helper()
	await(f.T, 60*time.Second, object+" "+reason, func() error {
		got, all := 0, f.events(object)
		for _, e := range all {
			name, series, _ := strings.Cut(e, " ")
			if count, _ := strconv.Atoi(series); name == reason { // A single Event has no count.
				got += max(1, count)
			}
		}
		if got != want {
			return fmt.Errorf("%d Events, want %d: %v", got, want, all)
		}
		return nil
	})
}

// restart replaces a speaker and waits until the new one has its session.
func (f *fanfare) restart(p *program) *program {
	f.Helper()
	p.stop()
	p = f.speaker()
	await(f.T, time.Minute, "the session of the next speaker", func() error {
		out, err := exec.CommandContext(f.Context(), f.binary, "status", "--run-dir", f.runDir()).CombinedOutput()
		if err == nil && !strings.Contains(string(out), "Established") {
			err = errors.New("no session")
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return p
}

// kubectl describe of a Service and of a BGPPeer shows what the speaker did. A restart of
// the speaker causes no Event. All that works with the rights of rbac.yaml.
func TestRestartRepeatsNoEvent(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		f.run("controller")
		// Routers accept no next hop in 127.0.0.0/8.
		nstest.Node(t).Addr("lo", "198.51.100.1/32", "198.51.100.9/32")
		router := f.bgpd()
		speaker := f.speaker()
		must(t, f.Admin().Apply(t.Context(), routedNode))
		f.awaitEvent("bgppeer/tor9", "SessionEstablished",
			"node n1 has a session with router tor9 (198.51.100.9, AS65000)")
		// This also holds for a speaker that has left nothing in the kernel.
		speaker = f.restart(speaker)
		must(t, f.Admin().Apply(t.Context(), oneService("web", "10.244.1.5")))
		var vip string
		await(t, time.Minute, "an address", func() (err error) { vip, err = f.assigned("web"); return err })
		f.awaitEvent("service/web", "Announced", "node n1 announces "+vip+" to tor9")

		f.restart(speaker)
		must(t, f.Admin().Apply(t.Context(), oneService("late", "10.244.1.6")))
		f.awaitEvent("service/late", "Announced", "node n1 announces ")
		if got := append(f.events("bgppeer/tor9"), f.events("service/web")...); !slices.Equal(got,
			[]string{"SessionEstablished", "Announced"}) {
			t.Errorf("Events after a restart: %q", got)
		}

		must(t, f.Admin().Apply(t.Context(), strings.ReplaceAll(oneService("web", "10.244.1.5"), "ready: true",
			"ready: false")))
		f.awaitEvent("service/web", "Withdrawn", "node n1 withdrew "+vip+" from tor9: no endpoint is ready anywhere")
		for times := range 2 {
			must(t, router.Process.Kill())
			f.awaitEventCount("bgppeer/tor9", "SessionLost", times+1)
			router = f.bgpd()
			f.awaitEventCount("bgppeer/tor9", "SessionEstablished", times+2)
		}
		f.awaitEvent("bgppeer/tor9", "SessionLost",
			"node n1 lost its session with router tor9 (198.51.100.9, AS65000): ")
		if got := f.events("bgppeer/tor9"); !slices.Contains(got, "SessionEstablished 2") {
			t.Errorf("the repeated Event is not counted: %v", got)
		}
	})
}

// A kernel that refuses the rules is an Event on the Node, and its recovery another. The
// node announces nothing before.
func TestKernelRefusalIsAnEvent(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		f.run("controller")
		nstest.Node(t).Addr("lo", "198.51.100.1/32", "198.51.100.9/32")
		f.bgpd()
		unlock := proxytest.LockTable(t)
		speaker := f.speaker("--health-address=127.0.0.1:7474")
		must(t, f.Admin().Apply(t.Context(), routedNode+"---"+oneService("web", "10.244.1.5")))
		f.awaitEvent("node/n1", "ForwardingFailed", "node n1 cannot program the kernel, and announces nothing new: ")
		speaker.awaitProbe("/readyz", "503 the kernel is not programmed yet")
		if got := append(f.events("service/web"), f.events("bgppeer/tor9")...); len(got) != 0 {
			t.Errorf("announced although the kernel refuses: %q", got)
		}
		unlock()
		f.awaitEvent("node/n1", "ForwardingRestored", "node n1 has programmed the kernel")
		f.awaitEvent("service/web", "Announced", "node n1 announces ")
		speaker.awaitProbe("/readyz", "200 ok")
	})
}
