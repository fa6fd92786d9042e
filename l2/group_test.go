package l2

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// groupsOn returns the interface's solicited-node groups of addresses that end in two
// bytes, by these bytes.
func groupsOn(t *testing.T, ns *nstest.NS, iface string) map[string]bool {
	t.Helper()
	in := make(map[string]bool)
	inside(t, ns, func() error {
		b, err := os.ReadFile("/proc/thread-self/net/igmp6")
		for _, line := range strings.Split(string(b), "\n") {
			f := strings.Fields(line)
			if len(f) > 2 && f[1] == iface && strings.HasPrefix(f[2], "ff0200000000000000000001ff00") {
				in[strings.TrimPrefix(f[2], "ff0200000000000000000001ff00")] = true
			}
		}
		return err
	})
	return in
}

// An interface joins the groups of the addresses held on it, more than one socket can join,
// and stays in a group that two addresses share while one of them remains.
func TestGroups(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node")
		n := start(t, hosts[0])
		before := len(groupsOn(t, hosts[0], "eth0"))
		var all []Address
		for i := range 3 * groupsPerSocket {
			all = append(all, Address{Addr: netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(0x80 + i>>8), 15: byte(i)})})
		}
		twin := Address{Addr: ip("fd00::1:0:8000")} // its last 24 bits are those of the first
		check := func(want int, first bool, addresses ...Address) {
			t.Helper()
			if got := n.set(addresses...); len(got) != len(addresses) {
				t.Errorf("%d of %d are held", len(got), len(addresses))
			}
			in := groupsOn(t, hosts[0], "eth0")
			if len(in)-before != want || in["8000"] != first {
				t.Errorf("in %d groups more than before, of the first address %t; want %d, %t", len(in)-before,
					in["8000"], want, first)
			}
		}
		check(len(all), true, append(all[:len(all):len(all)], twin)...)
		check(len(all), true, append(all[1:len(all):len(all)], twin)...)
		check(len(all)-1, false, all[1:]...)
		check(1, true, all[0])
		check(0, false)
	})
}

// A switch with MLD snooping forwards solicitations only to members of the group. They
// reach the node.
func TestMLDSnooping(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if _, err := exec.LookPath("ip"); err != nil {
			nstest.Missing(t, err.Error())
		}
		sw := nstest.New(t, "switch")
		hosts := lanOf(t, sw, "node", "client")
		run(t, sw, "ip link set br0 type bridge mcast_query_response_interval 10\nip link set br0 type "+
			"bridge mcast_querier 1")
		n, far, near := start(t, hosts[0]), listen(t, hosts[1], "eth0"), listen(t, hosts[0], "eth0")
		// Frames to all nodes and frames to one group arrive in the order in which they
		// were sent.
		until(t, func() string {
			far.ask("fd00::dead", "fd00::2")
			far.send(packet{
				op: opRequest, from: far.mac, to: near.mac, sender: ip("fd00::2"), target: ip("fd00::beef"),
			})
			if p := near.next(func(p packet) bool {
				return p.target == ip("fd00::dead") || p.target == ip("fd00::beef")
			}); p.target == ip("fd00::dead") {
				near.next(func(p packet) bool { return p.target == ip("fd00::beef") })
				return "the switch sends everything everywhere"
			}
			return ""
		})
		n.set(addresses("fd00::100")...)
		until(t, func() string {
			far.ask("fd00::100", "fd00::2")
			select {
			case p := <-far.got:
				if p.op == opReply && p.sender == ip("fd00::100") && p.to == far.mac {
					return ""
				}
			default:
			}
			return fmt.Sprint("no answer: ", n.Status())
		})
	})
}
