package fastpath

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// passAll attaches a program that ends the chain of programs and passes all packets to the stack, as
// Cilium's do.
func (l *lab) passAll(iface string) {
	l.t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "cil_pass", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}, // TCX_PASS
	})
	if err != nil {
		l.t.Fatal(err)
	}
	defer program.Close()
	attached, err := link.AttachTCX(link.TCXOptions{
		Interface: l.link(iface).Attrs().Index, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: link.Tail(),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { attached.Close() })
}

// Another program is at a pod's interface first and ends the chain: replies are translated all the
// same, since the flow's packets to the pod were.
func TestProgramAheadAtPod(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		l.passAll("cali1")
		l.set(l.path(), state("pod1"))
		for _, family := range families {
			for _, network := range []string{"tcp", "udp"} {
				if got := l.probe(network, port("vip", family, 80)); got != "pod1 saw client" {
					t.Errorf("%s: %s", network, got)
				}
			}
		}
		l.bypassed()
	})
}

// Where another program is first at the clients' interface, it may be a firewall: its verdict
// counts, and the rules get what it passes.
func TestProgramAheadAtClients(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		l.passAll("eth0")
		l.set(l.path(), state("pod1"))
		l.rules(port("vip", 0, 80), port("pod1", 0, 8080))
		if got := l.probe("udp", port("vip", 0, 80)); got != "pod1 saw client" {
			t.Error(got)
		}
		if l.counted("vip") == 0 {
			t.Error("the fast path took what another program had passed to the stack")
		}
	})
}

// The routes to pods lead to an interface that resolves no addresses, as to cilium_host, where a
// program hands packets to the pods: replies would not return there.
func TestRouteWithoutARP(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		if err := netlink.LinkSetARPOff(l.link("cali1")); err != nil {
			t.Fatal(err)
		}
		p := l.path()
		l.set(p, state("pod1"))
		got := p.Status().NotOffloaded
		if len(got) != 8 || got[0].Why != "the interface to backend 10.244.1.11: cali1 does not resolve addresses "+
			"(NOARP), so that pods are elsewhere" {
			t.Errorf("left to the rules: %+v", got)
		}
	})
}
