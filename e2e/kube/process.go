package kube

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// A Process is a process that a Cluster has started.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// start runs a program of the tools. It appends the output to a log file.
func (c *Cluster) start(name string, args ...string) (*Process, error) {
	path := filepath.Join(c.dir, name+".log")
	log, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.tools, append([]string{name}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	// The process has its own session, so that an interrupt reaches only this process, which
	// ends it in order. It dies with this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{name: name, log: path, cmd: cmd}
	if p.done, err = begin(cmd, c.inNamespace); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// begin starts a program through in, which calls its argument. The channel is closed when
// the program has ended. Pdeathsig refers to the thread that started the program, so that
// thread stays: threads that were in other namespaces may end at any time.
func begin(cmd *exec.Cmd, in func(func() error) error) (chan struct{}, error) {
	done, started := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := in(cmd.Start)
		if started <- err; err != nil {
			return
		}
		_ = cmd.Wait() // Tests read the log or the exit status.
		close(done)
	}()
	return done, <-started
}

// Kill ends the process as a crash does, and waits for its end. Kubernetes' programs take
// many seconds for an orderly stop.
func (p *Process) Kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill() // It may be gone already.
	<-p.done
}

// Terminate requests an orderly stop. kube-apiserver keeps its watches until it ends, a minute later.
func (p *Process) Terminate() { _ = p.cmd.Process.Signal(syscall.SIGTERM) } // The process may be gone already.

// Alive reports whether the process still runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// PID returns the process ID, for measurements.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// ready waits until probe returns nil. It fails when the process ends.
func (p *Process) ready(ctx context.Context, limit time.Duration, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
			continue
		case <-p.done:
			err = fmt.Errorf("it ended: %s", p.cmd.ProcessState)
		case <-ctx.Done():
		}
		return fmt.Errorf("%s: not ready: %w; the end of its log:\n%s", p.name, err, p.tail())
	}
}

func (p *Process) tail() []byte {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-20):], nil)
}
