package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
)

// A Program is one of four programs of iptables. Each family has two interfaces in the kernel,
// that of nftables and the old one, which do not know each other's rules. A packet must pass the
// rules of both.
type Program struct {
	Name string // without -save and -restore, such as iptables-nft
	ipv6 bool
	// Tables is the file that lists the tables that exist; empty for iptables-nft. With the
	// old interface, the kernel creates a table when a program asks for it, so the file must
	// be read first.
	Tables string
}

// Programs holds the four programs, installed or not; that of nftables comes first in each
// family.
var Programs = []Program{
	{Name: "iptables-nft"},
	{Name: "iptables-legacy", Tables: "/proc/thread-self/net/ip_tables_names"},
	{Name: "ip6tables-nft", ipv6: true},
	{Name: "ip6tables-legacy", ipv6: true, Tables: "/proc/thread-self/net/ip6_tables_names"},
}

// Has reports whether the program is installed and table filter may exist, so that Save can show
// it without creating it.
func (i Program) Has() (bool, error) {
	if _, err := exec.LookPath(i.Name + "-save"); err != nil {
		return false, nil
	}
	return i.hasTable("filter")
}

// hasTable reports whether a table may exist, so that a look at it does not create it.
func (i Program) hasTable(name string) (bool, error) {
	if i.Tables == "" {
		return true, nil
	}
	tables, err := os.ReadFile(i.Tables)
	// Either the kernel lacks the old interface; or the user namespace is as new as the network
	// namespace, where the file has no owner and iptables-legacy-save fails as well.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	return slices.Contains(strings.Fields(string(tables)), name), err
}

// interfaceMissing reports whether the kernel lacks what the program changes rules by.
func (i Program) interfaceMissing() bool {
	if i.Legacy() {
		_, err := os.ReadFile(i.Tables)
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) // as in Has
	}
	s, err := nfnl.Dial()
	if err != nil {
		return false
	}
	defer s.Close()
	_, err = s.Generation()
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

// Save returns table filter as iptables-save shows it. With the old interface, the kernel creates
// the table if it does not exist: ask Has first.
func (i Program) Save(ctx context.Context) (string, error) {
	return i.run(ctx, "", "-save", "-t", "filter")
}

// forwardLockWait is how many seconds a change of FORWARD waits for the xtables lock: few, because
// no endpoint changes meanwhile, and the caller retries later.
const forwardLockWait = 1

// restore changes the chains that script names and nothing else, in one transaction.
func (i Program) restore(ctx context.Context, script string) error {
	_, err := i.run(ctx, script, "-restore", "--noflush", "-w", strconv.Itoa(forwardLockWait))
	return err
}

// iptablesPatience bounds the time of a program that reads or writes only a few rules.
const iptablesPatience = 5 * time.Second

// run runs the program with a suffix, such as -save, and returns its standard output. An error has
// the first lines of its standard error.
func (i Program) run(ctx context.Context, input, suffix string, args ...string) (string, error) {
	return i.runFor(ctx, iptablesPatience, input, suffix, args...)
}

func (i Program) runFor(ctx context.Context, patience time.Duration, input, suffix string,
	args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := renderer.Run(ctx, input, i.Name+suffix, args...)
	if err != nil {
		return "", fmt.Errorf("%s%s: %w", i.Name, suffix, err)
	}
	return out, nil
}

// byRule calls change with go-iptables, which starts a process for each rule or question. Each
// waits lockWait seconds at most for the xtables lock, and patience bounds the time of all.
func (i Program) byRule(ctx context.Context, patience time.Duration, lockWait int,
	change func(*goiptables.IPTables) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := killAtEnd(ctx, func() error {
		t, err := goiptables.New(goiptables.Path(i.Name), goiptables.Timeout(lockWait))
		if err != nil {
			return err
		}
		return change(t)
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil: // the program was killed, and err says only that
		return fmt.Errorf("%s: %w", i.Name, ctx.Err())
	}
	return fmt.Errorf("%s: %s", i.Name, renderer.FirstLines(err.Error(), 3))
}

// killEvery is the time between two looks for programs that start after the context ended.
const killEvery = 10 * time.Millisecond

// killAtEnd calls a function that starts programs and takes no context. When ctx ends, it kills
// these programs, so that the function returns and none of them changes anything later. A kernel
// without CONFIG_PROC_CHILDREN does not list them; there, the function takes as long as they do.
func killAtEnd(ctx context.Context, call func() error) error {
	runtime.LockOSThread() // the programs are children of this thread, in its network namespace
	defer runtime.UnlockOSThread()
	list := fmt.Sprintf("/proc/self/task/%d/children", unix.Gettid())
	earlier := listed(list) // other goroutines may have started programs on this thread
	over := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		select {
		case <-over:
			return
		case <-ctx.Done():
		}
		for tick := time.Tick(killEvery); ; {
			kill(slices.DeleteFunc(listed(list), func(pid int) bool { return slices.Contains(earlier, pid) }))
			select {
			case <-over:
				return
			case <-tick:
			}
		}
	})
	err := call()
	close(over)
	killer.Wait() // later children of this thread are not call's
	return err
}

// listed returns the processes that a file lists; none if there is no such file.
func listed(file string) (pids []int) {
	text, _ := os.ReadFile(file)
	for _, field := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func kill(pids []int) {
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
	}
}
