package fastpath

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// awaitPeer waits until packets to an interface are handed to its other end, or are not.
func (l *lab) awaitPeer(p *Datapath, iface string, want bool) {
	l.t.Helper()
	what := iface + ": packets to be queued there"
	if want {
		what = iface + ": packets to be handed to the other end"
	}
	l.await(what, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		roles := p.attachments.roles[uint32(l.link(iface).Attrs().Index)]
		return roles&inward != 0 && (roles&peer != 0) == want
	})
}

// sends sends requests to a pod, by both protocols and families, and returns how many packets
// the node's end of its interface has sent.
func (l *lab) sends(iface, pod string) int {
	l.t.Helper()
	sent := func() uint64 {
		i, err := netlink.LinkByName(iface)
		if err != nil {
			l.t.Fatal(err)
		}
		return i.Attrs().Statistics.TxPackets
	}
	before := sent()
	for _, family := range families {
		for _, network := range []string{"tcp", "udp"} {
			c := l.mustDial(network, 0, port("vip", family, 80))
			for range questions {
				if got, want := ask(c, "who?"), pod+" saw client"; got != want {
					l.t.Errorf("%s %s: %s; want %s", network, at("vip", family), got, want)
				}
			}
		}
	}
	return int(sent() - before)
}

// questions is the number of requests for each protocol and family: more than there are other
// packets, such as Neighbor Discovery's.
const questions = 50

// passing returns a program that passes all packets.
func (l *lab) passing(kind ebpf.ProgramType, verdict int32) *ebpf.Program {
	l.t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, verdict), asm.Return(),
	}})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { p.Close() })
	return p
}

// Packets to a pod bypass the queue of its interface only while there is no queue, filter or
// program that must see them.
func TestPeer(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		index := l.link("cali1").Attrs().Index
		try := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		queue := func(q netlink.Qdisc) (do, undo func()) {
			return func() { try(netlink.QdiscAdd(q)) }, func() { try(netlink.QdiscDel(q)) }
		}
		program := func(attach func() (link.Link, error)) (do, undo func()) {
			var at link.Link
			return func() {
					var err error
					at, err = attach()
					try(err)
					notify.Changed(p.peersChanged) // without a notification, the check comes after five seconds
				}, func() {
					try(at.Close())
					notify.Changed(p.peersChanged)
				}
		}
		straight := func() {
			t.Helper()
			l.awaitPeer(p, "cali1", true)
			if n := l.sends("cali1", "pod1"); n >= questions {
				t.Errorf("without a queue or program, the node's end sent %d packets", n)
			}
		}
		l.sends("cali1", "pod1") // resolves the neighbours
		straight()
		for name, between := range map[string]func() (do, undo func()){
			"a queue that shapes": func() (do, undo func()) {
				return queue(&netlink.Tbf{
					QdiscAttrs: netlink.QdiscAttrs{
						LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT,
					},
					Rate: 1 << 30, Limit: 1 << 20, Buffer: 1 << 20,
				})
			},
			"a place for filters": func() (do, undo func()) {
				return queue(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
					LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
				}})
			},
			"a program at egress": func() (do, undo func()) {
				return program(func() (link.Link, error) {
					return link.AttachTCX(link.TCXOptions{
						Interface: index, Program: l.passing(ebpf.SchedCLS, next), Attach: ebpf.AttachTCXEgress,
					})
				})
			},
			"a program in the pod": func() (do, undo func()) {
				xdp := l.passing(ebpf.XDP, 2) // XDP_PASS
				return program(func() (at link.Link, err error) {
					l.pod1.Do(func() {
						var eth0 netlink.Link
						if eth0, err = netlink.LinkByName("eth0"); err == nil {
							at, err = link.AttachXDP(link.XDPOptions{
								Program: xdp, Interface: eth0.Attrs().Index, Flags: link.XDPDriverMode,
							})
						}
					})
					return at, err
				})
			},
		} {
			do, undo := between()
			do()
			l.awaitPeer(p, "cali1", false)
			if n := l.sends("cali1", "pod1"); n < 4*questions {
				t.Errorf("with %s, the node's end sent %d packets", name, n)
			}
			undo()
			straight()
		}
		l.bypassed()
	})
}

// A packet that is handed to a pod's end has the pod's MAC, so that a bridge in the pod, as
// virtual machines have it, accepts it.
func TestPeerBridgeInPod(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		pod4 := nstest.New(t, "pod4")
		nstest.Link(t, l.node, "cali4", pod4, "port")
		pod4.Bridge("eth0", "port")
		l.podAddresses(pod4, "cali4")
		l.serve(pod4)
		p := l.path()
		l.set(p, state("pod4"))
		l.sends("cali4", "pod4")
		l.awaitPeer(p, "cali4", true)
		if n := l.sends("cali4", "pod4"); n >= questions {
			t.Errorf("the node's end sent %d packets", n)
		}
		l.bypassed()
	})
}

// A bridge on the node has no other end: packets pass it as usual.
func TestPeerNone(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1", "pod3"))
		l.awaitPeer(p, "cali1", true)
		l.awaitPeer(p, "cni0", false)
		p.mu.Lock()
		roles := p.attachments.roles[uint32(l.link("eth0").Attrs().Index)]
		p.mu.Unlock()
		if roles != outward {
			t.Errorf("roles of eth0, whose other end is in another namespace: %b", roles)
		}
	})
}

// Without a speaker, new queues go undetected. So packets pass queues again after its lease has
// ended.
func TestPeerLease(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		l.sends("cali1", "pod1")
		l.awaitPeer(p, "cali1", true)
		p.stop()
		p.work.Wait() // so that it does not renew the lease
		var pod []byte
		l.pod1.Do(func() {
			if eth0, err := netlink.LinkByName("eth0"); err == nil {
				pod = eth0.Attrs().HardwareAddr
			}
		})
		for _, family := range families {
			there := packet{from: port("client", family, 40000), to: port("vip", family, 80), protocol: UDP}
			handed := func() bool {
				t.Helper()
				verdict, out := l.arrive(p, there.ip())
				if verdict != redirect {
					t.Fatalf("verdict %d", verdict)
				}
				if got := read(t, out); got.to != port("pod1", family, 8080) {
					t.Errorf("to %s", got.to)
				}
				return bytes.Equal(out[:6], pod) && bytes.Equal(out[6:12], l.mac("cali1"))
			}
			until := seconds() + 60
			for _, leased := range []bool{true, false} {
				if !leased {
					until = seconds() - 1
				}
				if err := p.kernel.Lease.Put(uint32(0), until); err != nil {
					t.Fatal(err)
				}
				// The first packet begins the flow, which needs a lease.
				if got := handed(); got != leased {
					t.Errorf("family %d, leased %t: handed to the pod's MAC %t", family, leased, got)
				}
			}
		}
	})
}

// The kernel verifies the neighbour entries of backends whose packets bypass its neighbour table.
func TestUseNeighbours(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		l.sends("cali1", "pod1")
		l.awaitPeer(p, "cali1", true)
		p.stop()
		p.work.Wait() // so that it does not call useNeighbours
		stale := func(a netip.Addr) bool {
			for _, n := range l.neighbours("cali1") {
				if n.IP.Equal(a.AsSlice()) {
					return n.State == unix.NUD_STALE
				}
			}
			t.Fatalf("no neighbour %s", a)
			return false
		}
		for _, family := range families {
			for _, n := range l.neighbours("cali1") {
				if n.IP.Equal(at("pod1", family).AsSlice()) {
					n.State = unix.NUD_STALE
					if err := netlink.NeighSet(&n); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		l.sends("cali1", "pod1")
		for _, family := range families {
			if !stale(at("pod1", family)) {
				t.Errorf("packets handed to %s made the kernel refresh the neighbour: useNeighbours is not needed",
					at("pod1", family))
			}
		}
		p.useNeighbours()
		for _, family := range families {
			if stale(at("pod1", family)) {
				t.Errorf("the kernel does not verify neighbour %s", at("pod1", family))
			}
		}
	})
}

func (l *lab) neighbours(iface string) []netlink.Neigh {
	l.t.Helper()
	all, err := netlink.NeighList(l.link(iface).Attrs().Index, unix.AF_UNSPEC)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		l.t.Fatal(err)
	}
	return all
}
