package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"
)

// A Speaker is the fanfare binary on one node.
type Speaker struct {
	Node   string
	RunDir string
	Flags  []string // added to the lab's flags from the next start on
	Binary string   // path of the program from the next start on; empty: the lab's

	lab  *Lab
	proc *Process // nil when it does not run
}

// Speaker returns the speaker of a node, running or not.
func (l *Lab) Speaker(node string) *Speaker {
	s := l.speakers[node]
	if s == nil {
		s = &Speaker{Node: node, RunDir: l.path("run", node), lab: l}
		l.speakers[node] = s
	}
	return s
}

func (s *Speaker) Start() error {
	if s.Running() {
		return fmt.Errorf("speaker %s runs already", s.Node)
	}
	if err := os.MkdirAll(s.RunDir, 0o755); err != nil {
		return err
	}
	args := slices.Concat([]string{cmp.Or(s.Binary, s.lab.Binary), "speaker"}, s.lab.Cluster.SpeakerArgs(s.Node),
		s.Flags)
	if s.lab.Members {
		args = append(args, "--members-key-file", s.lab.path(membersKey))
	}
	var err error
	s.proc, err = s.lab.Start(s.Node, "speaker-"+s.Node, append(args, "--node-name", s.Node, "--run-dir", s.RunDir)...)
	return err
}

// Running reports whether the process runs.
func (s *Speaker) Running() bool { return s.proc != nil && s.proc.Alive() }

// PID returns the process ID.
func (s *Speaker) PID() int { return s.proc.PID() }

// Kill ends the speaker with SIGKILL, as a crash does.
func (s *Speaker) Kill() error { return s.stop(syscall.SIGKILL) }

// Terminate ends the speaker with SIGTERM, as an upgrade does. The process must exit by
// itself with status 0.
func (s *Speaker) Terminate() error {
	p := s.proc
	if err := s.stop(syscall.SIGTERM); err != nil || p == nil {
		return err
	}
	if p.err != nil {
		return fmt.Errorf("speaker %s after SIGTERM: %w\n%s", s.Node, p.err, s.Log())
	}
	return nil
}

// Freeze stops the process with SIGSTOP; Resume continues it.
func (s *Speaker) Freeze() error { return s.proc.cmd.Process.Signal(syscall.SIGSTOP) }
func (s *Speaker) Resume() error { return s.proc.cmd.Process.Signal(syscall.SIGCONT) }

func (s *Speaker) stop(sig syscall.Signal) error {
	if s.proc == nil {
		return nil
	}
	p := s.proc
	s.proc = nil
	return p.Stop(sig, Settle)
}

// Log returns what the speaker has logged so far.
func (s *Speaker) Log() string {
	text, err := os.ReadFile(s.lab.path("log", "speaker-"+s.Node+".log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// A Status is the part of `fanfare status --json` that the lab reads.
type Status struct {
	Ready bool
	Error string
	BGP   struct {
		Sessions []struct{ Name, State string }
	}
	Addresses []struct {
		Address               netip.Addr
		Pool                  string // empty when no Service holds the address
		Services              []string
		Announced, Programmed bool
		LingeringUntil        *time.Time
	}
	Members struct {
		Nodes   []struct{ Node, State string }
		LeftOut []string
	}
	WithoutAddress []struct{ Service, Code, Message string }
	Problems       []struct{ Object, File, Field, Value, Message string }
}

// Status returns the output of `fanfare status --json`.
func (s *Speaker) Status(ctx context.Context) (Status, error) {
	var st Status
	out, err := s.command(ctx, "status", "--run-dir", s.RunDir, "--json")
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return st, fmt.Errorf("fanfare status --json: %w: %s", err, out)
	}
	return st, nil
}

// StatusText returns the output of `fanfare status`.
func (s *Speaker) StatusText(ctx context.Context) (string, error) {
	return s.command(ctx, "status", "--run-dir", s.RunDir)
}

func (s *Speaker) command(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, s.lab.Binary, args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return string(out), fmt.Errorf("fanfare %v: %w: %s", args, err, exit.Stderr)
	}
	return string(out), err
}

// AddressOf returns the first address of a family that a Service holds.
func (s Status) AddressOf(service string, v6 bool) (netip.Addr, bool) {
	for _, a := range s.Addresses {
		if a.Address.Is6() == v6 && slices.Contains(a.Services, service) && a.Pool != "" {
			return a.Address, true
		}
	}
	return netip.Addr{}, false
}

// StartSpeakers starts the speakers that do not run, and waits until the router has a
// session with each of these nodes.
func (l *Lab) StartSpeakers(ctx context.Context, nodes ...string) error {
	for _, n := range nodes {
		if s := l.Speaker(n); !s.Running() {
			if err := s.Start(); err != nil {
				return err
			}
		}
	}
	return l.AwaitSessions(ctx, nodes...)
}

// AwaitSessions waits until the router has a session with each of these nodes.
func (l *Lab) AwaitSessions(ctx context.Context, nodes ...string) error {
	return Await(ctx, Settle, fmt.Sprintf("BGP sessions with %v", nodes), func() error {
		got, err := l.Router.Established(ctx)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if s := l.Speaker(n); !s.Running() {
				return fmt.Errorf("speaker %s has ended:\n%s", n, s.Log())
			}
			if !slices.Contains(got, n) {
				return fmt.Errorf("established sessions: %v", got)
			}
			// After a crash the router may still show the old session.
			if err := l.Speaker(n).established(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *Speaker) established(ctx context.Context) error {
	st, err := s.Status(ctx)
	if err != nil {
		return err
	}
	for _, p := range st.BGP.Sessions {
		if p.State == "Established" {
			return nil
		}
	}
	return fmt.Errorf("%s reports its sessions as %v", s.Node, st.BGP.Sessions)
}

// AwaitAddress waits until all speakers report the same address of a family for a Service.
func (l *Lab) AwaitAddress(ctx context.Context, service string, v6 bool) (netip.Addr, error) {
	var vip netip.Addr
	err := Await(ctx, Settle, "an address for "+service, func() error {
		vip = netip.Addr{}
		for _, n := range NodeNames {
			st, err := l.Speaker(n).Status(ctx)
			if err != nil {
				return err
			}
			got, ok := st.AddressOf(service, v6)
			if !ok {
				return fmt.Errorf("speaker %s reports none", n)
			}
			if vip.IsValid() && got != vip {
				return fmt.Errorf("speaker %s reports %s, others %s", n, got, vip)
			}
			vip = got
		}
		return nil
	})
	return vip, err
}
