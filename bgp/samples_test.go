package bgp

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// sampleState is what a node announces to the router of docs/routers, over IPv4 and over
// IPv6: what the pools have, and what they have not.
func sampleState() State {
	session := func(name, router, source string) Session {
		return Session{
			Name: name, PeerAddress: netip.MustParseAddr(router), PeerASN: 65001,
			SourceAddress: netip.MustParseAddr(source),
			HoldTime:      9 * time.Second, ConnectTime: time.Second, GracefulRestart: true,
			// Slower than the router's 50 ms: many tests share this machine, and the slower side decides.
			BFD: BFD{Transmit: 300 * time.Millisecond, Receive: 300 * time.Millisecond, Multiplier: 5},
		}
	}
	return state([]Session{session("four", "10.0.0.1", "10.0.0.2"), session("six", "fd00::1", "fd00::2")},
		routes("192.0.2.1/32", "198.51.100.7/32", "2001:db8::1/128", "2001:db8:ffff::7/128"))
}

// playSample announces, says that the node is about to leave, and takes leave.
func playSample(t *testing.T, r kernelOf) {
	t.Helper()
	s := newServer(t, Options{})
	want := sampleState()
	_, err := s.Set(t.Context(), want)
	must(t, err)
	served := func() bool { return r.hops("192.0.2.1/32") == "10.0.0.2" && r.hops("2001:db8::1/128") == "fd00::2" }
	eventually(t, "routes of both families", served)
	eventually(t, "BFD", func() bool {
		return !slices.ContainsFunc(s.Status().Sessions,
			func(x SessionStatus) bool { return x.BFD == nil || x.BFD.State != "Up" })
	})
	before := s.Status().Sessions
	want.Shutdown = true
	_, err = s.Set(t.Context(), want)
	must(t, err)
	for _, was := range before {
		eventually(t, was.Name+" has the UPDATE",
			func() bool { return s.sessionStatus(was.Name).Updates > was.Updates })
	}
	if !served() {
		t.Error("the only node is no longer used before it has left")
	}
	for _, stray := range []string{"198.51.100.7/32", "2001:db8:ffff::7/128"} {
		if hops := r.hops(stray); hops != "" {
			t.Errorf("the router has %s via %s, which is in no pool", stray, hops)
		}
	}
	for _, x := range s.Status().Sessions {
		if x.State != Established || x.Flaps != 0 || x.IgnoredUpdates > 2 { // an End-of-RIB for each family
			t.Errorf("session %s: %+v", x.Name, x)
		}
	}
	must(t, s.Close(t.Context(), Withdraw))
	eventually(t, "no routes", func() bool { return r.hops("192.0.2.1/32") == "" && r.hops("2001:db8::1/128") == "" })
}

func readSample(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../docs/routers", name))
	must(t, err)
	return string(text)
}

func TestFRRSample(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, readSample(t, "frr.conf"), "bfdd")
		playSample(t, kernelOf{t, r.ns})
	})
}

func TestBIRDSample(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		program, err := exec.LookPath("bird")
		if err != nil {
			nstest.Missing(t, err.Error())
		}
		node, router := nstest.Node(t), nstest.New(t, "router")
		nstest.Link(t, node, "uplink", router, "eth0")
		node.Addr("uplink", "10.0.0.2/24", "fd00::2/64")
		router.Addr("eth0", "10.0.0.1/24", "fd00::1/64")
		router.Forward()
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "bird.conf"), []byte(readSample(t, "bird.conf")), 0o644))
		startBIRD(t, router, program, dir)
		playSample(t, kernelOf{t, router})
	})
}

var birdBlock = regexp.MustCompile("(?ms)^```bird\n(.*?)^```")

// The BIRD examples of docs/reference/router-configuration.md work with that file: a node
// with a password, GTSM and BFD, and one without an address; each has IPv4 over IPv6.
func TestBIRDGuide(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/router-configuration.md")
	must(t, err)
	blocks := birdBlock.FindAllSubmatch(text, -1)
	if len(blocks) != 2 {
		t.Fatalf("docs/reference/router-configuration.md shows %d configurations for BIRD", len(blocks))
	}
	whole := readSample(t, "bird.conf")
	before, _, _ := strings.Cut(whole, "# Nodes come and go")
	linked := unnumbered("tor1", "uplink")
	linked.HoldTime = 0 // many tests share this machine
	for _, c := range []struct {
		name, conf string
		session    Session
	}{
		{"secure", before + string(blocks[0][1]),
			Session{Name: "tor1", PeerAddress: netip.MustParseAddr("2001:db8:51::1"), PeerASN: 65001,
				TTLSecurityHops: 1, Password: "sesame",
				BFD: BFD{Transmit: 300 * time.Millisecond, Receive: 300 * time.Millisecond, Multiplier: 5}}},
		{"unnumbered", whole + strings.ReplaceAll(string(blocks[1][1]), "swp1", "eth0"), linked},
	} {
		t.Run(c.name, func(t *testing.T) {
			inNamespace(t, func(t *testing.T) {
				program, err := exec.LookPath("bird")
				if err != nil {
					nstest.Missing(t, err.Error())
				}
				node, router := nstest.Node(t), nstest.New(t, "router")
				nstest.Link(t, node, "uplink", router, "eth0")
				node.Addr("uplink", "2001:db8:51::11/64")
				router.Addr("eth0", "2001:db8:51::1/64")
				router.Forward()
				dir := t.TempDir()
				must(t, os.WriteFile(filepath.Join(dir, "bird.conf"), []byte(c.conf), 0o644))
				startBIRD(t, router, program, dir)
				s := newServer(t, Options{})
				_, err = s.Set(t.Context(), state([]Session{c.session}, routes("192.0.2.1/32", "2001:db8::1/128")))
				must(t, err)
				eventually(t, "session", func() bool {
					st := s.sessionStatus("tor1")
					return st.State == Established && st.Advertised == 2 &&
						(!c.session.BFD.enabled() || st.BFD != nil && st.BFD.Up())
				})
				hop := s.sessionStatus("tor1").LocalAddress.WithZone("").String()
				for _, family := range []string{"-4", "-6"} {
					eventually(t, "the node as next hop, "+family, func() bool {
						var out []byte
						router.Do(func() {
							out, err = exec.Command("ip", family, "route", "show", "proto", "bird").CombinedOutput()
						})
						return err == nil && strings.Contains(string(out), hop)
					})
				}
			})
		})
	}
}

// A birdProcess can be killed before its test ends.
type birdProcess struct {
	process *os.Process
	stop    func()
}

// startBIRD runs BIRD until the test ends.
func startBIRD(t *testing.T, ns *nstest.NS, program, dir string) *birdProcess {
	t.Helper()
	cmd := exec.Command(program, "-f", "-c", filepath.Join(dir, "bird.conf"), "-s", filepath.Join(dir, "bird.ctl"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	started, stop, stopped := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		// The thread that starts a process with Pdeathsig must outlive it.
		ns.Do(func() {
			err := cmd.Start()
			started <- err
			if err != nil {
				return
			}
			<-stop
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}()
	must(t, <-started)
	b := &birdProcess{process: cmd.Process, stop: sync.OnceFunc(func() {
		close(stop)
		<-stopped
		t.Logf("BIRD said:\n%s", log.String())
	})}
	t.Cleanup(b.stop)
	return b
}
