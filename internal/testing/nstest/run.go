package nstest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inside is set in the environment of a process that Run started.
const inside = "FANFARE_NSTEST"

// Run runs f as the body of t in a process with its own network namespace, loopback up, its
// own mount namespace and, unless the caller is root, its own user namespace. Call it first
// in a test: statements before it run twice.
//
// If the kernel does not permit such namespaces, the test fails with CI=true, and is
// skipped with the reason otherwise.
func Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		up(t)
		f(t)
		return
	}
	var out strings.Builder
	cmd := rerun(t)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		Missing(t, fmt.Sprintf("no network namespace: %v", err))
	}
	err := cmd.Wait()
	report(t, out.String(), err)
}

// rerun returns the command that runs only the test t, in a new namespace.
func rerun(t *testing.T) *exec.Cmd {
	args := []string{"-test.run=" + pattern(t.Name()), "-test.v=true", "-test.count=1"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	if end, ok := t.Deadline(); ok {
		// A second earlier than t's, so that the inner process can print its goroutines.
		args = append(args, "-test.timeout="+max(time.Until(end)-time.Second, time.Second).String())
	}
	cmd := exec.Command(os.Args[0], append(args, passed()...)...)
	cmd.Env = append(os.Environ(), inside+"="+t.Name(), raceOptions())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET,
		// Its mounts are private, and end with it.
		Unshareflags: syscall.CLONE_NEWNS,
		Pdeathsig:    syscall.SIGKILL,
	}
	if !privileged() {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// raceOptions returns the race detector's variable for a process that runs one test. By
// default the detector waits a second at the end of a process for races of remaining
// goroutines, which is most of the time of hundreds of short tests. A value in the
// environment takes precedence.
func raceOptions() string {
	return strings.TrimSpace("GORACE=atexit_sleep_ms=50 " + os.Getenv("GORACE"))
}

// passed returns the command line's flags that the test itself defines, such as -update.
func passed() []string {
	var own []string
	for _, a := range os.Args[1:] {
		if !strings.HasPrefix(a, "-test.") {
			own = append(own, a)
		}
	}
	return own
}

// pattern returns the -test.run expression that selects only the test name.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// privileged reports whether this process may create network namespaces without a user
// namespace.
func privileged() bool {
	var caps [2]unix.CapUserData
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return false
	}
	return caps[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// report sets the result of t to that of the inner process.
func report(t *testing.T, out string, err error) {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil && strings.Contains(out, "--- SKIP: "+t.Name()+" "):
		t.Skip("in its namespace:\n" + out)
	case err == nil && !strings.Contains(out, "--- PASS: "+t.Name()+" "):
		t.Fatalf("the test did not run in its namespace:\n%s", out)
	case err == nil:
		t.Log("in its namespace:\n" + out)
	case errors.As(err, &exit):
		t.Fatalf("in its namespace: %v\n%s", err, out)
	default:
		t.Fatal(err)
	}
}

// Isolate moves the calling goroutine permanently to a thread with a new network namespace.
// It is for benchmarks, whose results an inner process could not report, and needs
// CAP_SYS_ADMIN. Goroutines that the caller starts are not in the namespace.
func Isolate(tb testing.TB) {
	tb.Helper()
	if !privileged() {
		Missing(tb, "CAP_SYS_ADMIN is needed to give a thread its own network namespace")
	}
	// Never unlocked: the runtime ends the thread with the goroutine.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		Missing(tb, fmt.Sprintf("unshare: %v", err))
	}
	up(tb)
}

// BPF mounts a BPF file system, in which programs and maps can be pinned, and
// returns its directory. It is for tests under Run, and for benchmarks as root.
func BPF(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		Missing(tb, fmt.Sprintf("cannot mount a BPF file system: %v", err))
	}
	tb.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			tb.Errorf("%s: %v", dir, err)
		}
	})
	return dir
}

// Missing ends the test because the machine lacks something that it needs: it fails with
// CI=true, and is skipped otherwise.
func Missing(tb testing.TB, reason string) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatal(reason)
	}
	tb.Skip(reason)
}

// Accept serves each connection until the listener is closed, and closes it then.
func Accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}
