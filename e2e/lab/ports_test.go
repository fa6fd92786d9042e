package lab

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Each port is used once before any is reused, for both families. The range excludes the
// ports that tests choose.
func TestPortCycleUsesAllPorts(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("198.51.100.200"), netip.MustParseAddr("2001:db8:51::200")}
	var p portCycle
	last := map[uint16]int{}
	const number = lastPort - firstPort + 1
	for i := range 2*number + 1 {
		to := addrs[i%len(addrs)]
		from := p.next(to)
		if !from.Addr().IsUnspecified() || from.Addr().Is4() != to.Is4() || from.Port() < firstPort ||
			from.Port() > lastPort {
			t.Fatalf("to %s from %s: want any address of its family, and a port from %d to %d", to, from, firstPort,
				lastPort)
		}
		if before, again := last[from.Port()]; again && i-before != number {
			t.Fatalf("port %d came again after %d: want %d", from.Port(), i-before, number)
		}
		last[from.Port()] = i
	}
	if from := (*portCycle)(nil).next(addrs[0]); from.IsValid() {
		t.Errorf("without a cycle: %s, want the kernel's choice", from)
	}
}

// The kernel of the lab's client chooses ports outside the cycle.
func TestLabKernelPortsOutsideCycle(t *testing.T) {
	l := laboratory(t)
	var got []byte
	await(t, l.Client.Do(func() (err error) {
		got, err = os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
		return err
	}))
	if low, _, _ := strings.Cut(strings.TrimSpace(string(got)), "\t"); low != strconv.Itoa(lastPort+1) {
		t.Errorf("from %s: want from %d", low, lastPort+1)
	}
}
