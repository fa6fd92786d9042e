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
	cpu, err := measure.Field("/proc/cpuinfo", "model name\t: ")
	take(&m.CPU, cpu, err)
	system, err := measure.Field("/etc/os-release", "PRETTY_NAME=")
	take(&m.OperatingSystem, strings.Trim(system, `"`), err)
	load, err := os.ReadFile("/proc/loadavg")
	take(&m.Load, strings.Join(strings.Fields(string(load))[:1], " "), err)
	frr, err := measure.FirstLine(ctx, "/usr/lib/frr/bgpd", "--version")
	take(&m.FRR, strings.TrimPrefix(frr, "bgpd version "), err)
	bird, err := measure.FirstLine(ctx, "/usr/sbin/bird", "--version")
	take(&m.BIRD, strings.Replace(bird, "BIRD version", "BIRD", 1), err)
	nft, err := measure.FirstLine(ctx, "nft", "--version")
	take(&m.NFT, nft, err)
	kubernetes, err := measure.FirstLine(ctx, b.tools, "kube-apiserver", "--version")
	take(&m.Kubernetes, strings.TrimPrefix(kubernetes, "Kubernetes "), err)
	fanfare, err := measure.FirstLine(ctx, b.Binary, "--version")
	take(&m.Fanfare, strings.TrimPrefix(fanfare, "fanfare version "), err)
	return m, errors.Join(errs...)
}
