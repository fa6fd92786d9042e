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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// routedNode is a node between the two addresses of one interface, and its router.
var routedNode = strings.NewReplacer("127.0.0.1", "198.51.100.1", "127.0.0.9, ", "198.51.100.9, sourceAddress: 198.51.100.1, ").Replace(oneNode)

// bgpd is a real router for the BGPPeer of routedNode. It ends with the test, if
// not before.
func (f *fanfare) bgpd() *exec.Cmd {
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
`), 0o644))
	cmd := exec.Command(program, "--no_zebra", "--no_kernel", "-l", "198.51.100.9", "-p", "179", "-A", "127.0.0.1", "-P", "0",
		"--vty_socket", dir, "-i", filepath.Join(dir, "bgpd.pid"), "-u", "frr", "-g", "frr", "-f", config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(f.T, cmd.Start())
	f.Cleanup(func() {
		_ = cmd.Process.Kill() // It may be gone already.
		_ = cmd.Wait()
	})
	return cmd
}

// frrDir is a directory that FRR's own user can write to.
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

// kubectl is what an administrator types.
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

// describes waits until kubectl describe shows an Event of the speaker's with the
// reason, and this in its message.
func (f *fanfare) describes(object, reason, message string) {
	f.Helper()
	await(f.T, 60*time.Second, object+" "+reason, func() error {
		out, err := f.kubectl("describe", object)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if strings.Contains(line, reason) && strings.Contains(line, "fanfare.io/speaker") && strings.Contains(line, message) {
				return nil
			}
		}
		return fmt.Errorf("no %q with %q in\n%s", reason, message, out)
	})
}

// events are the reasons of the Events of an object, each with how often.
func (f *fanfare) events(object string) (reasons []string) {
	f.Helper()
	out, err := f.kubectl("events", "--for", object, "-o", `jsonpath={range .items[*]}{.reportingComponent} {.reason} {.series.count}{"\n"}{end}`)
	must(f.T, err)
	for line := range strings.Lines(out) {
		if reason, ours := strings.CutPrefix(strings.TrimSpace(line), "fanfare.io/speaker "); ours {
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

// tells waits until an object's Events have told a reason so often.
func (f *fanfare) tells(object, reason string, want int) {
	f.Helper()
	await(f.T, 60*time.Second, object+" "+reason, func() error {
		got, all := 0, f.events(object)
		for _, e := range all {
			name, series, _ := strings.Cut(e, " ")
			if count, _ := strconv.Atoi(series); name == reason { // Of one there is no number.
				got += max(1, count)
			}
		}
		if got != want {
			return fmt.Errorf("told %d times, want %d: %v", got, want, all)
		}
		return nil
	})
}

// restart returns another speaker in the place of p, once it has its session.
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

// kubectl describe of a Service and of a BGPPeer says what became of them on the
// node. A restart of the speaker is no news. All that with the rights of
// rbac.yaml.
func TestSpeakerEvents(t *testing.T) {
	apart(t, func(t *testing.T) {
		f := newFanfare(t)
		f.run("controller")
		// On 127.0.0.0/8 no router accepts a next hop.
		nstest.Node(t).Addr("lo", "198.51.100.1/32", "198.51.100.9/32")
		router := f.bgpd()
		speaker := f.speaker()
		must(t, f.Admin().Apply(t.Context(), routedNode))
		f.describes("bgppeer/tor9", "SessionEstablished", "node n1 has a session with router tor9 (198.51.100.9, AS65000)")
		// Not even of a speaker that has left nothing in the kernel.
		speaker = f.restart(speaker)
		must(t, f.Admin().Apply(t.Context(), oneService("web", "10.244.1.5")))
		var vip string
		await(t, time.Minute, "an address", func() (err error) { vip, err = f.assigned("web"); return err })
		f.describes("service/web", "Announced", "node n1 announces "+vip+" to tor9")

		f.restart(speaker)
		must(t, f.Admin().Apply(t.Context(), oneService("late", "10.244.1.6")))
		f.describes("service/late", "Announced", "node n1 announces ")
		if got := append(f.events("bgppeer/tor9"), f.events("service/web")...); !slices.Equal(got, []string{"SessionEstablished", "Announced"}) {
			t.Errorf("Events after a restart: %q", got)
		}

		must(t, f.Admin().Apply(t.Context(), strings.ReplaceAll(oneService("web", "10.244.1.5"), "ready: true", "ready: false")))
		f.describes("service/web", "Withdrawn", "node n1 withdrew "+vip+" from tor9: no endpoint is ready anywhere")
		for times := range 2 {
			must(t, router.Process.Kill())
			f.tells("bgppeer/tor9", "SessionLost", times+1)
			router = f.bgpd()
			f.tells("bgppeer/tor9", "SessionEstablished", times+2)
		}
		f.describes("bgppeer/tor9", "SessionLost", "node n1 lost its session with router tor9 (198.51.100.9, AS65000): ")
		if got := f.events("bgppeer/tor9"); !slices.Contains(got, "SessionEstablished 2") {
			t.Errorf("the same again is not one more of the same Event: %v", got)
		}
	})
}

// occupy takes the speaker's table, so that the kernel refuses every change by
// another process, and returns a function that gives it free.
func occupy(t *testing.T) (free func()) {
	t.Helper()
	nft := exec.Command("nft", "-i")
	in, err := nft.StdinPipe()
	must(t, err)
	must(t, nft.Start())
	free = sync.OnceFunc(func() {
		_ = nft.Process.Kill() // It may be gone already.
		_ = nft.Wait()
	})
	t.Cleanup(free)
	_, err = in.Write([]byte("add table inet fanfare { flags owner; }\n"))
	must(t, err)
	await(t, time.Minute, "the table", func() error { return exec.Command("nft", "list", "table", "inet", "fanfare").Run() })
	return free
}

// A kernel that refuses is an Event on the Node, and so is its change of mind.
// Nothing is announced before.
func TestKernelRefuses(t *testing.T) {
	apart(t, func(t *testing.T) {
		f := newFanfare(t)
		f.run("controller")
		nstest.Node(t).Addr("lo", "198.51.100.1/32", "198.51.100.9/32")
		f.bgpd()
		free := occupy(t)
		speaker := f.speaker("--metrics-address=127.0.0.1:7472")
		must(t, f.Admin().Apply(t.Context(), routedNode+"---"+oneService("web", "10.244.1.5")))
		f.describes("node/n1", "ForwardingFailed", "node n1 cannot program the kernel, and announces nothing new: ")
		speaker.answers("/readyz", "503 the kernel is not programmed yet")
		if got := append(f.events("service/web"), f.events("bgppeer/tor9")...); len(got) != 0 {
			t.Errorf("announced although the kernel refuses: %q", got)
		}
		free()
		f.describes("node/n1", "ForwardingRestored", "node n1 has programmed the kernel")
		f.describes("service/web", "Announced", "node n1 announces ")
		speaker.answers("/readyz", "200 ok")
	})
}
