package watch

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A Moment is a point in time by a clock that no user or NTP server sets: the time since the
// machine was booted, including suspension.
type Moment struct {
	Boot   string // the kernel's ID of the boot; empty: unknown
	Uptime time.Duration
}

// Now returns the present Moment by the kernel (CLOCK_BOOTTIME).
func Now() (Moment, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Moment{}, fmt.Errorf("boot ID: %w", err)
	}
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return Moment{}, fmt.Errorf("CLOCK_BOOTTIME: %w", err)
	}
	return Moment{string(bytes.TrimSpace(id)), time.Duration(t.Nano())}, nil
}

// Since returns the time from before to m, and false if it is unknown: the machine was booted
// in between, or before is later than m.
func (m Moment) Since(before Moment) (time.Duration, bool) {
	age := m.Uptime - before.Uptime
	return age, m.Boot != "" && m.Boot == before.Boot && age >= 0
}
