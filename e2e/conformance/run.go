package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A Client is where e2e.test runs: a host from which addresses, nodes and the API server can be reached.
type Client struct {
	Host       *lab.Namespace
	Kubeconfig string
	Kubectl    string // path of the program, whose name is kubectl
	Nodes      int
	Programs   string // folder of e2e.test
}

// Run runs the tests of a lane, and returns their results. Reports and the log are left in a folder.
func (c Client) Run(ctx context.Context, lane Lane, dir string) ([]Result, error) {
	if len(lane.Tests) == 0 {
		return nil, fmt.Errorf("lane %s has no tests: e2e.test would run all that it has", lane.Name)
	}
	err := os.RemoveAll(dir) // the reports of an earlier run
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := c.args(lane, dir)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, dir
	// e2e.test dies with this process: the signal is about the thread that has started it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = c.Host.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return nil, err
	}
	return readReports(dir, lane)
}

func (c Client) args(lane Lane, dir string) []string {
	args := []string{
		c.path("e2e.test"), "--kubeconfig=" + c.Kubeconfig, "--kubectl-path=" + c.Kubectl,
		fmt.Sprintf("--num-nodes=%d", c.Nodes),
		"--allowed-not-ready-nodes=0", "--report-dir=" + dir, "--ginkgo.v", "--ginkgo.no-color", "--ginkgo.timeout=60m",
	}
	provider := "local"
	for _, t := range lane.Tests {
		args = append(args, "--ginkgo.focus="+regexp.QuoteMeta(t.Name))
		if t.Provider != "" {
			provider = t.Provider
		}
	}
	return append(args, "--provider="+provider)
}

func (c Client) path(program string) string { return filepath.Join(c.Programs, program) }

// Tests lists all tests that e2e.test has, for Unknown.
func (c Client) Tests(ctx context.Context) (string, error) { return c.ask(ctx, "--list-tests") }

// Images returns the names of the images that the tests use: those of agnhost and pause.
func (c Client) Images(ctx context.Context) ([]string, error) {
	out, err := c.ask(ctx, "--list-images")
	names := strings.Fields(out)
	return slices.DeleteFunc(names, func(n string) bool { return !image.MatchString(n) }), err
}

var image = regexp.MustCompile(`/(agnhost|pause):`)

func (c Client) ask(ctx context.Context, flag string) (string, error) {
	out, err := exec.CommandContext(ctx, c.path("e2e.test"), flag).Output()
	if err != nil {
		err = fmt.Errorf("e2e.test %s: %w", flag, err)
	}
	return string(out), err
}
