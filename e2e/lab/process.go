package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Process is a process that the lab has started and recorded.
type Process struct {
	name   string
	cmd    *exec.Cmd
	record string        // file that names it for a later Sweep
	done   chan struct{} // closed when it has ended
	err    error         // the result of Wait; valid after done
}

// Start starts a command on a node. The name is also that of its log. The lab ends it in
// Down at the latest.
func (l *Lab) Start(node, name string, args ...string) (*Process, error) {
	return l.startProcess(l.namespaces[node], name, args...)
}

// startProcess starts a command in a namespace with its output appended to a log file, and
// records it.
func (l *Lab) startProcess(n *Namespace, name string, args ...string) (*Process, error) {
	log, err := os.OpenFile(l.path("log", name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	// The process has its own session: an interrupt at the terminal is for the lab, which then
	// ends everything in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := n.start(cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p := &Process{name: name, cmd: cmd, record: l.path("pids", name), done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, writeRecord(p.record, cmd.Process.Pid)
}

// PID returns the process ID, for measurements.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Alive reports whether the process still runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Stop sends a signal and waits for the process to end. After the limit it kills the
// process and returns an error.
func (p *Process) Stop(sig syscall.Signal, limit time.Duration) error {
	defer os.Remove(p.record)
	if !p.Alive() {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		err := p.cmd.Process.Kill()
		<-p.done
		return errors.Join(fmt.Errorf("%s: still running %s after %s; killed", p.name, limit, sig), err)
	}
}

// writeRecord stores the ID and the start time of a process, because IDs are reused.
func writeRecord(path string, pid int) error {
	start, err := startTime(pid)
	if err != nil {
		return err
	}
	return os.WriteFile(path, fmt.Appendf(nil, "%d %s\n", pid, start), 0o644)
}

// readRecord returns the recorded process if it still runs, else 0.
func readRecord(path string) (pid int, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	number, start, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if pid, err = strconv.Atoi(number); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if now, err := startTime(pid); err != nil || now != start {
		return 0, nil
	}
	return pid, nil
}

// startTime returns the 22nd field of /proc/PID/stat, in ticks since boot. The second
// field, the command's name, is in brackets and may contain anything. A zombie counts as
// ended.
func startTime(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	_, rest, _ := cutLast(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" {
		return "", fs.ErrNotExist
	}
	return fields[19], nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// killRecorded kills every recorded process of a lab's directory and waits for their end.
func killRecorded(dir string) error {
	records, err := filepath.Glob(filepath.Join(dir, "pids", "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range records {
		errs = append(errs, killRecord(r))
	}
	return errors.Join(errs...)
}

func killRecord(record string) error {
	pid, err := readRecord(record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // Another process may sweep at the same time.
	}
	if err != nil || pid == 0 {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %d of %s: %w", pid, record, err)
	}
	return Await(context.Background(), Settle, "end of "+record, func() error {
		pid, err := readRecord(record)
		if pid == 0 && (err == nil || errors.Is(err, fs.ErrNotExist)) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("process %d still runs", pid)
	})
}
