package proxy

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
)

// isStale reports whether err shows that the kernel's table differs from what was expected: another
// program changed it.
func isStale(err error) bool {
	for _, e := range []error{unix.ENOENT, unix.EEXIST, unix.EBUSY, unix.ENOTEMPTY} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.Is(err, nfnl.ErrUnanswered) || errors.Is(err, iptables.ErrRefused)
}

// blamed are the errors of the kernel for a change that is too large or unacceptable.
var blamed = []error{
	unix.ENOMEM, unix.EINVAL, unix.E2BIG, unix.EMSGSIZE, unix.ENFILE, unix.ENOSPC, unix.EMLINK, unix.ERANGE, unix.ELOOP,
	unix.EOVERFLOW, unix.ENOBUFS,
}

// blamesState reports whether one address may have caused an error of the kernel. No address is
// withdrawn for errors of the node, such as missing rights, or errors that the next attempt may not
// have.
func blamesState(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var exit *exec.ExitError
	var set *iptables.SetError
	if errors.As(err, &exit) { // of iptables-restore, which has only text for details
		return exit.Exited() && !strings.Contains(err.Error(), "xtables lock")
	}
	return errors.As(err, &set) || slices.ContainsFunc(blamed, func(e error) bool { return errors.Is(err, e) })
}
