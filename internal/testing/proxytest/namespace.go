package proxytest

import (
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// InNamespace runs f in a network namespace of its own, with a real kernel's
// nftables.
func InNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		nstest.Missing(t, err.Error())
	}
	// Each is a process of its own, and waits more than it works.
	t.Parallel()
	nstest.Run(t, f)
}

// WithoutRights takes all capabilities from the calling goroutine, whose thread ends
// with it.
func WithoutRights(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&hdr, &none[0]); err != nil {
		t.Fatal(err)
	}
}
