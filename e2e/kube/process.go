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

// A Process was started by a Cluster.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// start runs a program of the tools. Its output is appended to a file.
func (c *Cluster) start(name string, args ...string) (*Process, error) {
	path := filepath.Join(c.dir, name+".log")
	log, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.tools, append([]string{name}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	// A session of its own, so that an interrupt is for us, who then end it in
	// order; and an end with ours, should we die without.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{name: name, log: path, cmd: cmd}
	if p.done, err = begin(cmd, c.inNamespace); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// begin starts a program by a function that calls another. The channel is closed
// when the program has ended. Pdeathsig is for the death of the thread that started
// it, which therefore stays: threads that were in other namespaces end at any time.
func begin(cmd *exec.Cmd, in func(func() error) error) (chan struct{}, error) {
	done, started := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := in(cmd.Start)
		if started <- err; err != nil {
			return
		}
		_ = cmd.Wait() // Tests read the log, or ask how it ended.
		close(done)
	}()
	return done, <-started
}

// Kill ends the process as a crash would, and waits for the end. Kubernetes'
// programs take many seconds to stop when they are asked to.
func (p *Process) Kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill() // It may be gone already.
	<-p.done
}

// Alive says whether the process still runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// PID is that of the process, for measurements.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// ready waits until probe returns nil. A process that ends is not waited for.
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
