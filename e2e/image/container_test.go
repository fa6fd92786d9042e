package image

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A container is a root directory, a network namespace, and mounts of the machine's files.
type container struct {
	root string
	node *nstest.NS
	env  []string
	// binds are files and directories of the machine by their path in the container.
	// Everything else is read-only.
	binds map[string]string
}

func newContainer(t *testing.T, root string, env []string, binds map[string]string) *container {
	t.Helper()
	binds["/proc"], binds["/dev/null"] = "/proc", "/dev/null"
	c := &container{root: root, node: nstest.New(t, "node"), env: env, binds: binds}
	for place, from := range binds {
		if err := mountPoint(from, filepath.Join(root, place)); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// mountPoint creates a mount point where the image has none, as a container runtime does.
func mountPoint(from, place string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(place, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return err
	}
	return os.WriteFile(place, nil, 0o644)
}

// command returns a command of the image, for start.
func (c *container) command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir = c.env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.root}
	return cmd
}

// start starts a command with the privileges of the speaker's manifest: root, NET_ADMIN,
// NET_BIND_SERVICE and NET_RAW, no new privileges, and a read-only root.
func (c *container) start(cmd *exec.Cmd) error {
	var err error
	// The confined thread ends with the function.
	c.node.Do(func() {
		if err = c.mount(); err != nil {
			return
		}
		if err = drop(unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW); err != nil {
			return
		}
		err = cmd.Start()
	})
	return err
}

// mount gives the calling thread its own mounts.
func (c *container) mount() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	// Otherwise every mount would appear on the machine as well.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount /", err)
	}
	if err := bind(c.root, c.root); err != nil {
		return err
	}
	for place, from := range c.binds {
		if err := bind(from, filepath.Join(c.root, place)); err != nil {
			return err
		}
	}
	sysctls := filepath.Join(c.root, "proc/sys")
	if err := bind(sysctls, sysctls); err != nil {
		return err
	}
	for _, readOnly := range []string{c.root, sysctls} {
		if err := unix.Mount("", readOnly, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return os.NewSyscallError("mount "+readOnly, err)
		}
	}
	return nil
}

func bind(from, place string) error {
	return os.NewSyscallError("mount "+place, unix.Mount(from, place, "", unix.MS_BIND, ""))
}

// drop removes all other capabilities from the programs that the calling thread starts. The
// thread itself needs its own to start them.
func drop(keep ...int) error {
	for c := range unix.CAP_LAST_CAP + 1 {
		kept := false
		for _, k := range keep {
			kept = kept || k == c
		}
		if kept {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl", err)
		}
	}
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
}
