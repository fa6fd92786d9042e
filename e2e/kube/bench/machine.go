package main

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

// A machine is what the numbers depend on besides the programs measured, and the
// versions of those.
type machine struct {
	Cores                         int
	CPU, Kernel                   string
	Load                          string // how much else there was to do at the start
	Go, Kubernetes, FRR, BIRD     string
	Fanfare, NFT, OperatingSystem string
}

func describe(ctx context.Context, b *bench) (m machine, err error) {
	m.Cores, m.Go = runtime.NumCPU(), runtime.Version()
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(uname.Release[:])
	var errs []error
	take := func(to *string, value string, err error) {
		*to, errs = value, append(errs, err)
	}
	cpu, err := field("/proc/cpuinfo", "model name\t: ")
	take(&m.CPU, cpu, err)
	system, err := field("/etc/os-release", "PRETTY_NAME=")
	take(&m.OperatingSystem, strings.Trim(system, `"`), err)
	load, err := os.ReadFile("/proc/loadavg")
	take(&m.Load, strings.Join(strings.Fields(string(load))[:1], " "), err)
	frr, err := firstLine(ctx, "/usr/lib/frr/bgpd", "--version")
	take(&m.FRR, strings.TrimPrefix(frr, "bgpd version "), err)
	bird, err := firstLine(ctx, "/usr/sbin/bird", "--version")
	take(&m.BIRD, strings.Replace(bird, "BIRD version", "BIRD", 1), err)
	nft, err := firstLine(ctx, "nft", "--version")
	take(&m.NFT, nft, err)
	kubernetes, err := firstLine(ctx, b.tools, "kube-apiserver", "--version")
	take(&m.Kubernetes, strings.TrimPrefix(kubernetes, "Kubernetes "), err)
	fanfare, err := firstLine(ctx, b.Binary, "--version")
	take(&m.Fanfare, strings.TrimPrefix(fanfare, "fanfare version "), err)
	return m, errors.Join(errs...)
}

// field is what follows a word at the beginning of a line of a file.
func field(path, word string) (string, error) {
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

func firstLine(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line), nil
}
