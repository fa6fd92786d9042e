package kube

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Fields of a Service, from the API server through the EndpointSlices of Kubernetes' own
// controller to packets.
func TestServicePolicies(t *testing.T) {
	isolated(t, func(t *testing.T) {
		s := newTestbed(t)
		s.run("controller")
		speaker := s.speaker()
		objects := policyObjects()
		if *oldest { // the only value before Kubernetes 1.34
			objects = strings.NewReplacer("PreferSameZone", "PreferClose", "PreferSameNode",
				"PreferClose").Replace(objects)
		}
		must(t, s.Admin().Apply(t.Context(), testbedPool+"---"+objects))
		for _, row := range []struct {
			name string
			test func(*testbed)
		}{
			{"named target ports", (*testbed).namedPorts},
			{"trafficDistribution", (*testbed).distribution},
			{"publishNotReadyAddresses", (*testbed).notReady},
			{"many ports", (*testbed).manyPorts},
			{"sessionAffinity", (*testbed).affinity},
			{"loadBalancerSourceRanges", (*testbed).sourceRanges},
		} {
			t.Run(row.name, func(t *testing.T) { row.test(s.withT(t)) })
		}
		t.Run("SNAT", func(t *testing.T) { s.withT(t).snat(speaker) })
	})
}

// withT returns the testbed for a subtest.
func (s *testbed) withT(t *testing.T) *testbed {
	f, part := *s.fanfare, *s
	f.T, part.fanfare = t, &f
	return &part
}

const (
	pod11, pod12, pod13, pod21 = "10.244.1.11:8080", "10.244.1.12:9090", "10.244.1.13:8080", "10.244.2.21:8080"
	policyPorts                = 100
)

func policyObjects() string {
	var ports []string
	for i := range policyPorts {
		ports = append(ports, fmt.Sprintf("{name: t%d, port: %d, targetPort: 8080}, {name: u%d, port: %d, "+
			"targetPort: 8080, protocol: UDP}", i, 1000+i, i, 1000+i))
	}
	const web = "ports: [{name: http, port: 80, targetPort: web}]"
	return testbedPod("p11", "10.244.1.11", "n1", "8080", "True", "near: 'yes', all: 'yes', first: 'yes'") +
		testbedPod("p12", "10.244.1.12", "n1", "9090", "True", "near: 'yes', all: 'yes'") +
		testbedPod("p13", "10.244.1.13", "n1", "8080", "False", "late: 'yes'") +
		testbedPod("p21", "10.244.2.21", "n2", "8080", "True", "far: 'yes', all: 'yes'") +
		testbedService("named", "near", web) +
		testbedService("spread", "all", web) +
		testbedService("zonal", "all", web+", trafficDistribution: PreferSameZone") +
		testbedService("nodal", "all", web+", trafficDistribution: PreferSameNode") +
		testbedService("early", "late", web+", publishNotReadyAddresses: true") +
		testbedService("withheld", "late", web) +
		testbedService("ports", "first", "ports: ["+strings.Join(ports, ", ")+"]") +
		testbedService("sticky", "near", web+", sessionAffinity: ClientIP") +
		testbedService("ranges", "near", web+", loadBalancerSourceRanges: [198.51.100.0/24]") +
		testbedService("remote", "far", web)
}

// namedPorts: one port of a Service has another number at each pod, so that there are two
// EndpointSlices.
func (s *testbed) namedPorts() { s.awaitPods(s.at("named"), pod11, pod12) }

func (s *testbed) distribution() {
	s.awaitPods(s.at("spread"), pod11, pod12, pod21)
	s.awaitPods(s.at("zonal"), pod11, pod12)
	s.awaitPods(s.at("nodal"), pod11, pod12)
}

func (s *testbed) notReady() {
	s.awaitPods(s.at("early"), pod13)
	await(s.T, time.Minute, "a refusal", func() error {
		_, err := s.ask(shortTimeout, s.client, clientAddr(2), s.at("withheld"))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("%w; want it refused", errors.Join(err, errAnswered))
		}
		return nil
	})
}

func (s *testbed) manyPorts() {
	vip := s.address("ports")
	s.awaitAnswer(net.JoinHostPort(vip, fmt.Sprint(1000+policyPorts-1)))
	for i := range policyPorts {
		for _, network := range []string{"tcp", "udp"} {
			f, err := dial(s.Context(), s.client, network, clientAddr(2), net.JoinHostPort(vip, fmt.Sprint(1000+i)))
			if err != nil {
				s.Fatal(network, err)
			}
			f.Close()
			if f.pod.String() != pod11 {
				s.Errorf("%s port %d: %s", network, 1000+i, f.pod)
			}
		}
	}
}

// affinity: clients return to their pod until it is removed.
func (s *testbed) affinity() {
	to := s.at("sticky")
	s.awaitPods(to, pod11, pod12)
	had := map[string]string{}
	clientsOf := func(each func(client, pod string)) {
		for i := 2; i <= clients; i++ {
			a, err := s.ask(patience, s.client, clientAddr(i), to)
			if err != nil {
				s.Fatal(err)
			}
			each(clientAddr(i), a.pod.String())
		}
	}
	clientsOf(func(client, pod string) { had[client] = pod })
	for range 4 {
		clientsOf(func(client, pod string) {
			if pod != had[client] {
				s.Errorf("%s had %s, and now has %s", client, had[client], pod)
			}
		})
	}
	// Its kubelet reports that it is no longer ready.
	must(s.T, s.Admin().Apply(s.Context(),
		testbedPod("p12", "10.244.1.12", "n1", "9090", "False", "near: 'yes', all: 'yes'")))
	s.awaitPods(to, pod11)
	clientsOf(func(client, pod string) { had[client] = pod })
	must(s.T, s.Admin().Apply(s.Context(),
		testbedPod("p12", "10.244.1.12", "n1", "9090", "True", "near: 'yes', all: 'yes'")))
	s.awaitPods(s.at("named"), pod11, pod12)
	clientsOf(func(client, pod string) {
		if pod != had[client] {
			s.Errorf("%s had %s as the only pod, and now has %s", client, had[client], pod)
		}
	})
}

// sourceRanges: narrowing the list ends only the flows of clients that it now excludes.
func (s *testbed) sourceRanges() {
	to := s.at("ranges")
	s.awaitAnswer(to)
	inside, outside := clientAddr(2), clientAddr(9)
	flows := map[string]*flow{}
	for _, from := range []string{inside, outside} {
		f, err := dial(s.Context(), s.client, "tcp", from, to)
		must(s.T, err)
		defer f.Close()
		must(s.T, f.alive(patience))
		flows[from] = f
	}
	must(s.T, s.Admin().Patch(s.Context(), serviceKind, "default", "ranges",
		`{"spec": {"loadBalancerSourceRanges": ["198.51.100.2/31"]}}`))
	await(s.T, time.Minute, "the end of the excluded client's flow", func() error {
		if flows[outside].alive(silence) == nil {
			return errAnswered
		}
		return nil
	})
	if f, err := dialFor(s.Context(), silence, s.client, "tcp", outside, to); err == nil {
		f.Close()
		s.Error("an excluded client can connect")
	}
	if err := flows[inside].alive(patience); err != nil {
		s.Errorf("the flow of an allowed client: %v", err)
	}
	if _, err := s.ask(patience, s.client, inside, to); err != nil {
		s.Errorf("a new flow of an allowed client: %v", err)
	}
}

// snat restarts the speaker with different flags and checks the source that a pod of
// another node sees. The counter counts the packets that the kernel finally sends there.
func (s *testbed) snat(speaker *program) {
	to := s.at("remote")
	s.awaitAnswer(to)
	const counter = `oifname "remote" ct status dnat ct state new meta mark and 0x5000 == 0x4000 counter`
	must(s.T, nft("table inet observe { chain late { type filter hook postrouting priority 300; }; }"))
	for _, row := range []struct {
		name  string
		flags []string
		saw   string
		keeps bool // the client's port
		marks bool
	}{
		{"default", nil, remoteGateway, false, false},
		{"a source, its port, a mark", []string{"--snat-sources=" + spareAddr, "--snat-ports=keep",
			"--masquerade-mark=0x4000/0x4000"}, spareAddr, true, true},
		{"a source by its interface, random ports", []string{"--snat-sources=eth0", "--snat-ports=random"}, nodeAddr,
			false, false},
		{"never", []string{"--snat-sources=" + spareAddr, "--snat-never-cidrs=10.244.2.0/24"}, clientAddr(2), true,
			false},
		{"never elsewhere", []string{"--snat-never-cidrs=10.244.3.0/24"}, remoteGateway, false, false},
	} {
		s.Run(row.name, func(t *testing.T) {
			speaker.kill()
			speaker = s.speaker(row.flags...)
			await(t, time.Minute, "the source at the pod", func() error {
				a, err := s.ask(shortTimeout, s.client, clientAddr(2), to)
				if err == nil && a.saw.Addr().String() != row.saw {
					err = fmt.Errorf("it saw %s, want %s", a.saw, row.saw)
				}
				return err
			})
			must(t, nft("flush chain inet observe late; add rule inet observe late "+counter))
			kept := 0
			const tries = 5
			for range tries {
				f, err := dial(s.Context(), s.client, "tcp", clientAddr(2), to)
				must(t, err)
				if f.saw.Addr().String() != row.saw {
					t.Errorf("the pod saw %s, want %s", f.saw, row.saw)
				}
				if netip.MustParseAddrPort(f.LocalAddr().String()).Port() == f.saw.Port() {
					kept++
				}
				f.Close()
			}
			if kept != tries && row.keeps || kept == tries && !row.keeps {
				t.Errorf("%d of %d kept their port", kept, tries)
			}
			out, err := exec.Command("nft", "list", "chain", "inet", "observe", "late").CombinedOutput()
			must(t, err)
			if marked := !strings.Contains(string(out), "packets 0 "); marked != row.marks {
				t.Errorf("marked: %v, want %v:\n%s", marked, row.marks, out)
			}
		})
	}
}

func nft(script string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}
