package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// A Machine describes the environment of a measurement: hardware, load, and versions of
// programs.
type Machine struct {
	Cores                     int
	CPU, Kernel, System, Load string // Load is the load average at the start
	Go                        string

	Fanfare, Kubernetes, FRR, BIRD, NFT, IPTables string // empty: not used
}

// Describe returns a description of this machine, with the versions of the given programs.
func Describe(ctx context.Context, binary string, others ...func(*Machine) Version) (Machine, error) {
	m, err := thisMachine()
	versions := []Version{{To: &m.Fanfare, Cut: "fanfare version ", Command: []string{binary, "--version"}}}
	for _, v := range others {
		versions = append(versions, v(&m))
	}
	err = errors.Join(err, Versions(ctx, versions...))
	return m, err
}

// FRR returns the version of FRR.
func FRR(m *Machine) Version {
	return Version{To: &m.FRR, Cut: "bgpd version ", Command: []string{"/usr/lib/frr/bgpd", "--version"}}
}

// BIRD returns the version of BIRD.
func BIRD(m *Machine) Version {
	return Version{To: &m.BIRD, Cut: "BIRD version ", Command: []string{"/usr/sbin/bird", "--version"}}
}

// NFT returns the version of nft.
func NFT(m *Machine) Version { return Version{To: &m.NFT, Command: []string{"nft", "--version"}} }

// Kubernetes returns the version of one of Kubernetes' programs in tools.
func Kubernetes(tools, program string) func(*Machine) Version {
	return func(m *Machine) Version {
		return Version{To: &m.Kubernetes, Cut: "Kubernetes ", Command: []string{tools, program, "--version"}}
	}
}

func thisMachine() (m Machine, err error) {
	m.Cores, m.Go = runtime.NumCPU(), runtime.Version()
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(uname.Release[:])
	load, err := os.ReadFile("/proc/loadavg")
	m.Load, _, _ = strings.Cut(string(load), " ")
	cpu, cpuErr := Field("/proc/cpuinfo", "model name\t: ")
	system, systemErr := Field("/etc/os-release", "PRETTY_NAME=")
	m.CPU, m.System = cpu, strings.Trim(system, `"`)
	return m, errors.Join(err, cpuErr, systemErr)
}

// Field returns the rest of the first line of a file that starts with a word.
func Field(path, word string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), word); ok {
			return value, nil
		}
	}
	return "", fmt.Errorf("%s: no %q", path, word)
}

// A Version says how to read a program's version.
type Version struct {
	To      *string  // destination
	Cut     string   // prefix of the output to remove
	Command []string // command that prints it in its first line
}

// Versions runs the commands and stores the versions.
func Versions(ctx context.Context, all ...Version) error {
	var errs []error
	for _, v := range all {
		line, err := firstLine(ctx, v.Command...)
		*v.To, errs = strings.TrimPrefix(line, v.Cut), append(errs, err)
	}
	return errors.Join(errs...)
}

// firstLine returns the first line of a command's output.
func firstLine(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line), nil
}
