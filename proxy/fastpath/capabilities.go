package fastpath

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The capabilities that maps and programs need; CAP_SYS_ADMIN includes all of them.
var capabilities = []struct {
	name string
	bit  uint
}{
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN},
	{"CAP_BPF", unix.CAP_BPF},
	{"CAP_PERFMON", unix.CAP_PERFMON},
}

// missingCapabilities returns the names of the capabilities that this thread lacks.
func missingCapabilities() ([]string, error) {
	var have [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &have[0]); err != nil {
		return nil, err
	}
	has := func(bit uint) bool { return have[bit/32].Effective>>(bit%32)&1 != 0 }
	var names []string
	for _, r := range capabilities {
		if !has(r.bit) && !has(unix.CAP_SYS_ADMIN) {
			names = append(names, r.name)
		}
	}
	return names, nil
}

// explain names the missing capabilities if they can be the cause of err. The library's own
// text, about locked memory or an old kernel, would mislead.
func explain(err error) error {
	for _, cause := range []error{unix.EPERM, unix.EACCES, ebpf.ErrNotSupported} {
		if !errors.Is(err, cause) {
			continue
		}
		if names, asked := missingCapabilities(); asked == nil && len(names) > 0 {
			return fmt.Errorf("the process lacks %s: %w", strings.Join(names, ", "), cause)
		}
	}
	return err
}
