package fastpath

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// A pod that returns on a new interface of the same name is reached again.
func TestVethReplaced(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		// Over UDP: a pod's kernel repeats the last segments of TCP, perhaps when the new interface has
		// no hook yet.
		if got := l.probe("udp", port("vip", 0, 80)); got != "pod1 saw client" {
			t.Fatal(got)
		}
		was := l.link("cali1")
		delete(l.links, "cali1")
		if err := netlink.LinkDel(was); err != nil {
			t.Fatal(err)
		}
		l.await("the old interface's hook to go", func() bool { return len(l.pinned("inward-")) == 0 })
		l.await("the status to tell", func() bool {
			return len(p.Status().NotOffloaded) == 8 || len(p.Status().NotOffloaded) == 4
		})
		l.veth(l.pod1, "cali1")
		if was.Attrs().Index == l.link("cali1").Attrs().Index {
			t.Fatal("it has the same index")
		}
		l.await("the new interface to be followed", func() bool { return len(p.Status().NotOffloaded) == 0 })
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

// pinned returns the names of pins with this prefix.
func (l *lab) pinned(prefix string) []string {
	l.t.Helper()
	all, err := os.ReadDir(filepath.Join(l.dir, version))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.t.Fatal(err)
	}
	var names []string
	for _, e := range all {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names
}

// After a process ends, existing flows continue and new ones are taken, and the next process
// adopts all of them.
func TestAdoption(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1", "pod2"))
		vip := port("vip", 0, 80)
		c, u := l.mustDial("tcp", 0, vip), l.mustDial("udp", 0, vip)
		wantC, wantU := ask(c, "?"), ask(u, "?")
		goOn := func(when string) {
			t.Helper()
			for range 3 {
				if got := ask(c, "?"); got != wantC {
					t.Errorf("%s: %s; want %s", when, got, wantC)
				}
				if got := ask(u, "?"); got != wantU {
					t.Errorf("%s: %s; want %s", when, got, wantU)
				}
			}
			for _, family := range families {
				if got := l.probe("tcp", port("vip", family, 80)); !strings.HasSuffix(got, "saw client") {
					t.Errorf("%s: a new connection: %s", when, got)
				}
			}
			l.bypassed()
		}
		goOn("before")
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		goOn("with no process")
		p = l.path()
		goOn("with another process that knows nothing yet")
		if err := p.Shrink(t.Context(), state("pod1", "pod2", "pod3")); err != nil {
			t.Fatal(err)
		}
		goOn("shrunk")
		l.set(p, state("pod1", "pod2", "pod3"))
		goOn("taken over")
		if s := p.Status(); s.Repairs != 0 || len(s.NotOffloaded) != 0 {
			t.Errorf("status %+v", s)
		}
		p.awaitCounted(l, "taken over")
		l.await("no more slots than there are backends", func() bool {
			slots := 0
			var place kernelPlace
			var slot kernelSlot
			for all := p.kernel.Slots.Iterate(); all.Next(&place, &slot); slots++ {
			}
			return slots == 8*3
		})
	})
}

// The same holds for a process that is killed.
func TestAdoptionAfterKill(t *testing.T) {
	const told = "FANFARE_TEST_FASTPATH"
	if dir := os.Getenv(told); dir != "" {
		p, err := New(t.Context(), Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		s := state("pod1")
		if err := errors.Join(p.Shrink(t.Context(), s), p.Grow(t.Context(), s)); err != nil {
			t.Fatal(err)
		}
		fmt.Println("ready")
		select {}
	}
	inNamespace(t, func(t *testing.T, l *lab) {
		child := exec.Command(os.Args[0], "-test.run=^TestAdoptionAfterKill$")
		child.Env = append(os.Environ(), told+"="+l.dir)
		out, err := child.StdoutPipe()
		if err == nil {
			err = child.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 5)
		if _, err := io.ReadFull(out, line); err != nil || string(line) != "ready" {
			rest, _ := io.ReadAll(out)
			t.Fatalf("%s%s %v", line, rest, err)
		}
		c := l.mustDial("tcp", 0, port("vip", 0, 80))
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait()
		if got := ask(c, "?"); got != "pod1 saw client" {
			t.Errorf("without a process: %s", got)
		}
		p := l.path()
		l.set(p, state("pod1"))
		if got := ask(c, "?"); got != "pod1 saw client" {
			t.Errorf("after: %s", got)
		}
		l.bypassed()
	})
}

// Hooks and maps that another program detaches or unpins are restored, and connections
// continue.
func TestRepair(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		s := state("pod1")
		l.set(p, s)
		c := l.mustDial("tcp", 0, port("vip", 0, 80))
		for i, damage := range []func() error{
			func() error { return os.RemoveAll(l.dir) },
			func() error {
				index := uint32(l.link("eth0").Attrs().Index)
				return p.attachments.links[hook{index, outward}].Detach()
			},
		} {
			p.mu.Lock() // otherwise half of it may be repaired while the other half is removed
			err := damage()
			p.mu.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			l.set(p, s)
			if s := p.Status(); s.Repairs != uint64(i+1) || !strings.Contains(s.Found, "outward-") {
				t.Errorf("status %+v", s)
			}
			if got := ask(c, "?"); got != "pod1 saw client" {
				t.Errorf("%s", got)
			}
		}
		if n := len(l.pinned("")); n != len(p.kernel.maps())+2 {
			t.Errorf("%d pins: %v", n, l.pinned(""))
		}
	})
}

// Cleanup removes maps of all versions, and does nothing in a missing directory.
func TestCleanup(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		if err := Cleanup(t.Context(), l.dir); err != nil {
			t.Error(err)
		}
		p := l.path()
		l.set(p, state("pod1"))
		if err := os.MkdirAll(filepath.Join(l.dir, "v0"), 0o700); err != nil {
			t.Fatal(err)
		}
		p.Close()
		p = l.path() // removes v0, another version
		if _, err := os.Stat(filepath.Join(l.dir, "v0")); err == nil {
			t.Error("maps of another version remain")
		}
		p.Close()
		if err := Cleanup(t.Context(), l.dir); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(l.dir); err == nil {
			t.Error("the directory remains")
		}
		l.await("programs to go", func() bool {
			for _, iface := range []string{"eth0", "cali1"} {
				all, err := link.QueryPrograms(link.QueryOptions{
					Target: l.link(iface).Attrs().Index, Attach: ebpf.AttachTCXIngress,
				})
				if err != nil {
					t.Fatal(err)
				}
				if len(all.Programs) != 0 {
					return false
				}
			}
			return true
		})
		if err := Cleanup(t.Context(), t.TempDir()); err == nil {
			t.Error("Cleanup removes a directory that is not on a BPF file system")
		}
	})
}
