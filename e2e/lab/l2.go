package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/e2e/observer"
)

// membersKey is the name of the key file for membership, in the lab's directory.
const membersKey = "members.key"

// ForL2 returns the options of a layer 2 lab: with a host on the nodes' segment, and
// without BGP sessions. Containerlab is the folder with topologies and clusters.
func (o Options) ForL2(containerlab string) Options {
	o.Overlays = append(slices.Clone(o.Overlays), containerlab+"/overlays/l2.yml")
	o.Objects, o.Members = containerlab+"/l2", true
	return o
}

// Host returns the client on the nodes' own segment.
func (l *Lab) Host() *Client { return l.clientIn("host") }

// A Neighbour is the host's neighbour table entry for an address.
type Neighbour struct {
	MAC   string
	State string // as `ip neigh` prints it
}

// Neighbour reads the entry from the host's kernel.
func (l *Lab) Neighbour(a netip.Addr) (n Neighbour, err error) {
	err = l.namespaces["host"].Do(func() error {
		link, err := netlink.LinkByName("eth1")
		if err != nil {
			return err
		}
		family := unix.AF_INET
		if a.Is6() {
			family = unix.AF_INET6
		}
		list, err := netlink.NeighList(link.Attrs().Index, family)
		for _, e := range list {
			if addr, ok := netip.AddrFromSlice(e.IP); ok && addr.Unmap() == a {
				n = Neighbour{e.HardwareAddr.String(), neighbourState(e.State)}
			}
		}
		return err
	})
	return n, err
}

// Moves records when a host began to send to another node, by its kernel's clock.
type Moves struct {
	listener *observer.Listener

	mu   sync.Mutex
	at   map[netip.Addr][]time.Time
	macs map[netip.Addr]string
	err  error
}

// WatchNeighbours records the changes of the host's neighbour table until Close.
func (l *Lab) WatchNeighbours() (m *Moves, err error) { return l.WatchNeighboursOf("host") }

// WatchNeighboursOf does so for another host or router on the segment.
func (l *Lab) WatchNeighboursOf(host string) (m *Moves, err error) {
	m = &Moves{at: map[netip.Addr][]time.Time{}, macs: map[netip.Addr]string{}}
	m.listener, err = observer.Listen(l.namespaces[host], "neighbours", openNeighbours, m.record, m.fail)
	return m, err
}

// openNeighbours opens a socket that receives changes of neighbour entries.
func openNeighbours(stamp func(int) error) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	return fd, errors.Join(stamp(fd), unix.Bind(fd,
		&unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_NEIGH - 1)}))
}

func (m *Moves) record(at time.Time, text []byte) error {
	messages, err := syscall.ParseNetlinkMessage(text)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, message := range messages {
		if message.Header.Type != unix.RTM_NEWNEIGH {
			continue
		}
		n, err := netlink.NeighDeserialize(message.Data)
		if err != nil {
			return err
		}
		a, ok := netip.AddrFromSlice(n.IP)
		if mac := n.HardwareAddr.String(); ok && mac != "" && m.macs[a.Unmap()] != mac {
			a = a.Unmap()
			m.macs[a], m.at[a] = mac, append(m.at[a], at)
		}
	}
	return nil
}

func (m *Moves) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// Of returns the moves of one address, its first resolution included.
func (m *Moves) Of(a netip.Addr) ([]time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.at[a]), m.err
}

// Await waits for the next move of an address after the given time.
func (m *Moves) Await(ctx context.Context, a netip.Addr, after time.Time) (at time.Time, err error) {
	err = Await(ctx, Settle, fmt.Sprintf("the host to send to another node for %s", a), func() error {
		all, err := m.Of(a)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, after.Before)
		if i < 0 {
			return fmt.Errorf("it moved at %v", all)
		}
		at = all[i]
		return nil
	})
	return at, err
}

// Close ends the watch.
func (m *Moves) Close() { m.listener.Close() }

func neighbourState(state int) string {
	for name, bit := range map[string]int{"REACHABLE": unix.NUD_REACHABLE, "STALE": unix.NUD_STALE,
		"DELAY": unix.NUD_DELAY,
		"PROBE": unix.NUD_PROBE, "FAILED": unix.NUD_FAILED, "INCOMPLETE": unix.NUD_INCOMPLETE} {
		if state&bit != 0 {
			return name
		}
	}
	return fmt.Sprint(state)
}

// MAC returns the hardware address of a node on the segment.
func (l *Lab) MAC(node string) (mac string, err error) {
	return l.hardwareAddress(node, "eth1")
}

// Owners returns the nodes whose speakers report that they announce an address.
func (l *Lab) Owners(ctx context.Context, vip netip.Addr) (owners []string, err error) {
	for _, n := range NodeNames {
		if !l.Speaker(n).Running() {
			continue
		}
		st, err := l.Speaker(n).Status(ctx)
		if err != nil {
			return nil, err
		}
		for _, a := range st.Addresses {
			if a.Address == vip && a.Announced {
				owners = append(owners, n)
			}
		}
	}
	return owners, nil
}

// AwaitOwner waits until exactly one node announces an address and the host's neighbour
// entry, if any, has its hardware address. It returns the node. With want, the node must be
// one of those.
func (l *Lab) AwaitOwner(ctx context.Context, vip netip.Addr, want ...string) (owner string, err error) {
	err = Await(ctx, Settle, fmt.Sprintf("one of %v to announce %s", want, vip), func() error {
		owners, err := l.Owners(ctx, vip)
		if err != nil {
			return err
		}
		if len(owners) != 1 || len(want) > 0 && !slices.Contains(want, owners[0]) {
			return fmt.Errorf("announced by %v", owners)
		}
		owner = owners[0]
		n, err := l.Neighbour(vip)
		if err != nil || n.MAC == "" {
			return err
		}
		mac, err := l.MAC(owner)
		if err == nil && n.MAC != mac {
			err = fmt.Errorf("the host has %s (%s), and %s is %s", n.MAC, n.State, owner, mac)
		}
		return err
	})
	return owner, err
}

// AwaitReady waits until the speakers are ready.
func (l *Lab) AwaitReady(ctx context.Context, nodes ...string) error {
	return Await(ctx, Settle, fmt.Sprintf("speakers %v to be ready", nodes), func() error {
		for _, n := range nodes {
			s := l.Speaker(n)
			if !s.Running() {
				return fmt.Errorf("speaker %s has ended:\n%s", n, s.Log())
			}
			st, err := s.Status(ctx)
			if err != nil {
				return err
			}
			if !st.Ready {
				return fmt.Errorf("speaker %s is not ready: %s", n, st.Error)
			}
		}
		return nil
	})
}

// StartL2Speakers starts the speakers that do not run, and waits until they are ready.
func (l *Lab) StartL2Speakers(ctx context.Context, nodes ...string) error {
	for _, n := range nodes {
		if s := l.Speaker(n); !s.Running() {
			if err := s.Start(); err != nil {
				return err
			}
		}
	}
	return l.AwaitReady(ctx, nodes...)
}

// Disconnect takes down the link of a node, as a pulled cable does.
func (l *Lab) Disconnect(ctx context.Context, node string) error { return l.setPort(ctx, node, "down") }

// Reconnect takes the link up again.
func (l *Lab) Reconnect(ctx context.Context, node string) error { return l.setPort(ctx, node, "up") }

func (l *Lab) setPort(ctx context.Context, node, state string) error {
	_, err := l.namespaces["tor1"].Run(ctx, "ip", "link", "set", "eth"+strings.TrimPrefix(node, "n"), state)
	return err
}

// ProbeNeighbour makes the host's kernel probe a neighbour by unicast, and waits until the
// entry is REACHABLE.
func (l *Lab) ProbeNeighbour(ctx context.Context, vip netip.Addr) error {
	if _, err := l.namespaces["host"].Run(ctx, "ip", "neigh", "change", vip.String(), "dev", "eth1", "nud",
		"probe"); err != nil {
		return err
	}
	return Await(ctx, Settle, fmt.Sprintf("%s to be reachable", vip), func() error {
		n, err := l.Neighbour(vip)
		if err == nil && n.State != "REACHABLE" {
			err = fmt.Errorf("it is %s", n.State)
		}
		return err
	})
}

// DetectedDead returns when the first of the other speakers logged, after the given time,
// that a node is dead.
func (l *Lab) DetectedDead(node string, after time.Time) (first time.Time, err error) {
	for _, n := range NodeNames {
		if n == node {
			continue
		}
		for line := range strings.Lines(l.Speaker(n).Log()) {
			stamp, rest, ok := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			if !ok || !strings.Contains(rest, `msg="node is dead"`) || !strings.Contains(rest, "node="+node) {
				continue
			}
			at, err := time.Parse(time.RFC3339Nano, stamp)
			if err != nil {
				return first, err
			}
			if at.After(after) && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
	}
	if first.IsZero() {
		return first, fmt.Errorf("no speaker has logged that node %s is dead", node)
	}
	return first, nil
}

// PacketsSent returns the number of packets that a node has sent to the segment.
func (l *Lab) PacketsSent(node string) (n uint64, err error) {
	err = l.namespaces[node].Do(func() error {
		link, err := netlink.LinkByName("eth1")
		if err == nil {
			n = link.Attrs().Statistics.TxPackets
		}
		return err
	})
	return n, err
}

// PowerOff fails a node's power: its speaker is killed and its link is down. Reboot clears
// its kernel state.
func (l *Lab) PowerOff(ctx context.Context, node string) error {
	return errors.Join(l.Disconnect(ctx, node), l.Speaker(node).stop(syscall.SIGKILL))
}

// Reboot starts the node again, with an empty kernel and an empty state directory.
func (l *Lab) Reboot(ctx context.Context, node string) error {
	s := l.Speaker(node)
	if _, err := l.namespaces[node].Run(ctx, l.Binary, "cleanup", "--run-dir", s.RunDir); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(s.RunDir), l.namespaces[node].flushConntrack(),
		l.Reconnect(ctx, node)); err != nil {
		return err
	}
	return l.StartL2Speakers(ctx, node)
}
