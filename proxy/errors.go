package proxy

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
)

// isStale reports whether err shows that the kernel does not hold what was
// expected: another program changed our table.
func isStale(err error) bool {
	for _, e := range []error{unix.ENOENT, unix.EEXIST, unix.EBUSY, unix.ENOTEMPTY} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.Is(err, nfnl.ErrUnanswered) || errors.Is(err, iptables.ErrRefused)
}

// blamed are the errors by which the kernel says that a change is too much for it, or not what
// it takes.
var blamed = []error{
	unix.ENOMEM, unix.EINVAL, unix.E2BIG, unix.EMSGSIZE, unix.ENFILE, unix.ENOSPC, unix.EMLINK, unix.ERANGE, unix.ELOOP, unix.EOVERFLOW, unix.ENOBUFS,
}

// blamesState reports whether an error of the kernel's may be one address's fault. What is
// the node's, as a lack of rights, and what is over with the next attempt, is not: no address
// is withdrawn for that.
func blamesState(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var exit *exec.ExitError
	var set *iptables.SetError
	if errors.As(err, &exit) { // of iptables-restore, which says no more than text
		return exit.Exited() && !strings.Contains(err.Error(), "xtables lock")
	}
	return errors.As(err, &set) || slices.ContainsFunc(blamed, func(e error) bool { return errors.Is(err, e) })
}
