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

// A Machine is what numbers depend on besides the programs that are measured.
type Machine struct {
	Cores                     int
	CPU, Kernel, System, Load string // Load is how much else there was to do.
	Go                        string
}

// ThisMachine describes the one that this runs on, now.
func ThisMachine() (m Machine, err error) {
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

// Field is what follows a word at the beginning of a line of a file.
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

// A Version is of a program that is measured, or that measures.
type Version struct {
	To      *string  // where it is wanted
	Cut     string   // what the program prints before it
	Command []string // what prints it, in its first line
}

// Versions asks programs for theirs.
func Versions(ctx context.Context, all ...Version) error {
	var errs []error
	for _, v := range all {
		line, err := firstLine(ctx, v.Command...)
		*v.To, errs = strings.TrimPrefix(line, v.Cut), append(errs, err)
	}
	return errors.Join(errs...)
}

// firstLine is the first line that a command prints.
func firstLine(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line), nil
}
