package l2

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A node whose process stood still ignores requests that have waited for a second: another node
// may have the address since. It answers newer ones.
func TestStaleRequestsGetNoAnswer(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client")
		n, client := start(t, hosts[0]), listen(t, hosts[1], "eth0")
		n.phases.requestLifetime = repeatTime
		n.set(addresses("10.0.0.100", "10.0.0.101", "10.0.0.102", "fd00::100", "fd00::101", "fd00::102")...)
		stale := func(protocol string) float64 {
			return testutil.ToFloat64(n.metrics.packets.WithLabelValues(protocol, "stale"))
		}
		// askLate has a request about prefix+"101" wait until it is old.
		askLate := func(prefix string) (answers []netip.Addr) {
			sender := prefix + "2"
			n.phases.mu.Lock()               // the reader stands still with the next frame
			client.ask(prefix+"100", sender) // this one, which it has read in time
			client.ask(prefix+"101", sender)
			asked := time.Now()
			until(t, func() string {
				if time.Since(asked) <= repeatTime {
					return "the request is not old yet"
				}
				return ""
			})
			n.phases.mu.Unlock()
			return client.askUntilAnswered(prefix+"102", sender) // the reader keeps the order
		}
		until(t, func() string { // as SO_TIMESTAMPNS is in stale.go
			if askLate("10.0.0."); stale("arp") == 0 {
				return "the kernel does not note times yet"
			}
			return ""
		})
		for _, link := range []struct{ prefix, protocol string }{{"10.0.0.", "arp"}, {"fd00::", "ndp"}} {
			before := stale(link.protocol)
			if got := askLate(link.prefix); slices.Contains(got, ip(link.prefix+"101")) {
				t.Errorf("%s: a request that was a second old was answered: %v", link.protocol, got)
			}
			if stale(link.protocol) == before {
				t.Errorf("%s: no request counts as stale", link.protocol)
			}
		}
	})
}

// askUntilAnswered asks for an address, again each second as hosts do, and returns the addresses of
// all answers until then.
func (s *station) askUntilAnswered(a, sender string) (answers []netip.Addr) {
	s.t.Helper()
	repeat, deadline := time.NewTicker(time.Second), time.After(timeout)
	defer repeat.Stop()
	for s.ask(a, sender); ; {
		select {
		case p := <-s.got:
			if p.op == opReply && p.to == s.mac {
				answers = append(answers, p.sender)
			}
			if slices.Contains(answers, ip(a)) {
				return answers
			}
		case <-repeat.C:
			s.ask(a, sender)
		case <-deadline:
			s.t.Fatalf("no answer about %s", a)
		}
	}
}

// Requests that wait for the first probe become stale like others, and so do the remembered ones. Their
// age begins when the kernel receives the frame.
func TestStaleRequestsWaitForNoProbe(t *testing.T) {
	d := newDryRun(t, "192.0.2.1")
	d.now = d.start.Add(10 * time.Second)
	d.receiveAt(d.request(0x11, "8"), d.now.Add(-repeatTime)) // remembered too late
	d.receiveAt(d.request(0x12, "8"), d.now.Add(-repeatTime/2))
	d.assign()
	d.receiveAt(d.request(0x13, "8"), d.now.Add(-repeatTime)) // comes too late
	d.receiveAt(d.request(0x14, "8"), d.now.Add(-repeatTime+10*time.Millisecond))
	d.at(10*time.Second + 30*time.Millisecond)
	d.expect(Probing, "10s probes\n10.02s answers host 18\n")
}

// Claims of other hosts count, whatever their age.
func TestStaleClaimIsConflict(t *testing.T) {
	d := newDryRun(t, "192.0.2.1")
	d.assign()
	d.at(time.Second)
	d.receiveAt(announcement(d.x.want.Addr, mac(ownerMAC)), d.start)
	if c := d.x.conflict; c == nil || c.MAC != mac(ownerMAC) || c.When != d.now {
		t.Errorf("conflict %v", c)
	}
}

// A frame is as old as the kernel says. A clock that was set back, and frames without a
// timestamp, make no frame old.
func TestAge(t *testing.T) {
	now := time.Now()
	stamp := func(level, kind int, at time.Time) []byte {
		b := make([]byte, controlLength)
		binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(timespecLength)))
		binary.NativeEndian.PutUint32(b[8:], uint32(level))
		binary.NativeEndian.PutUint32(b[12:], uint32(kind))
		binary.NativeEndian.PutUint64(b[16:], uint64(at.Unix()))
		binary.NativeEndian.PutUint64(b[24:], uint64(at.Nanosecond()))
		return b
	}
	old := stamp(unix.SOL_SOCKET, unix.SCM_TIMESTAMPNS, now.Add(-1500*time.Millisecond))
	for _, tt := range []struct {
		name    string
		control []byte
		want    time.Duration
	}{
		{"no timestamp", nil, 0},
		{"old", old, 1500 * time.Millisecond},
		{"after another message", slices.Concat(stamp(unix.SOL_PACKET, unix.PACKET_AUXDATA, now), old),
			1500 * time.Millisecond},
		{"another message alone", stamp(unix.SOL_PACKET, unix.PACKET_AUXDATA, now.Add(-time.Hour)), 0},
		{"before the clock was set back", stamp(unix.SOL_SOCKET, unix.SCM_TIMESTAMPNS, now.Add(time.Hour)), 0},
		{"cut off", old[:24], 0},
	} {
		if got := age(tt.control, now); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
