package measure

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// A Usage is a process's CPU time so far and its memory.
type Usage struct {
	Name string
	RSS  int64 // bytes
	Peak int64 // bytes, maximum
	// CPU is user and system time, with that of programs that it ran and that have ended:
	// kube-proxy runs nft for each change.
	CPU time.Duration
}

// ClockTick is the unit of CPU times in /proc: USER_HZ is 100 on every Linux that Go
// supports.
const ClockTick = 10 * time.Millisecond

// UsageOf reads the usage of a process. The name is for the report.
func UsageOf(name string, pid int) (u Usage, err error) {
	u.Name = name
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, fmt.Errorf("%s: %w", name, err)
	}
	u.RSS, u.Peak = kibibytes(string(status), "VmRSS:"), kibibytes(string(status), "VmHWM:")
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, fmt.Errorf("%s: %w", name, err)
	}
	u.CPU, err = cpuTime(string(stat))
	if err != nil {
		return u, fmt.Errorf("%s: %w", name, err)
	}
	return u, nil
}

func kibibytes(status, field string) int64 {
	_, rest, _ := strings.Cut(status, field)
	number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, _ := strconv.ParseInt(number, 10, 64) // A zombie has no memory and no such line.
	return n << 10
}

// cpuTime adds the fields 14 to 17 of /proc/PID/stat: utime, stime, cutime and cstime. The
// second field, the command's name, is in brackets and may contain anything.
func cpuTime(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 15 {
		return 0, fmt.Errorf("/proc stat %q", stat)
	}
	var ticks int64
	for _, f := range fields[11:15] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * ClockTick, nil
}

// A Spent is the CPU time that a process used between two readings.
type Spent struct {
	Name string
	CPU  time.Duration
}

// Spend compares two readings. Processes that are only in the second are left out.
func Spend(before, after []Usage) []Spent {
	var all []Spent
	for _, u := range after {
		for _, was := range before {
			if was.Name == u.Name {
				all = append(all, Spent{u.Name, u.CPU - was.CPU})
			}
		}
	}
	return all
}

// A Share is the part of one core that a process used over a time.
type Share struct {
	Name string
	Core float64
}

// Shares compares two readings as Spend does.
func Shares(before, after []Usage, span time.Duration) []Share {
	var all []Share
	for _, s := range Spend(before, after) {
		all = append(all, Share{s.Name, s.CPU.Seconds() / span.Seconds()})
	}
	return all
}
