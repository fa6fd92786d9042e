package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/e2e/kube/measure"
)

// A machine is what the numbers depend on besides the programs measured, and the
// versions of those.
type machine struct {
	Cores                     int
	CPU, Kernel, System, Load string
	Fanfare, Go, Kubernetes   string
	NFT, IPTables             string
}

func describe(ctx context.Context, b *bench) (m machine, err error) {
	m.Cores, m.Go = runtime.NumCPU(), runtime.Version()
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(uname.Release[:])
	load, err := os.ReadFile("/proc/loadavg")
	m.Load, _, _ = strings.Cut(string(load), " ")
	errs := []error{err}
	for _, f := range []struct {
		to         *string
		path, word string
	}{{&m.CPU, "/proc/cpuinfo", "model name\t: "}, {&m.System, "/etc/os-release", "PRETTY_NAME="}} {
		value, err := measure.Field(f.path, f.word)
		*f.to, errs = strings.Trim(value, `"`), append(errs, err)
	}
	for _, f := range []struct {
		to      *string
		cut     string
		command []string
	}{
		{&m.Kubernetes, "Kubernetes ", []string{b.tools, "kube-proxy", "--version"}},
		{&m.Fanfare, "fanfare version ", []string{b.binary, "--version"}},
		{&m.NFT, "", []string{"nft", "--version"}},
		{&m.IPTables, "", []string{legacy["iptables"], "--version"}},
	} {
		line, err := measure.FirstLine(ctx, f.command...)
		*f.to, errs = strings.TrimPrefix(line, f.cut), append(errs, err)
	}
	return m, errors.Join(errs...)
}
