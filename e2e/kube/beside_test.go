package kube

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// kube-proxy and Fanfare on one node: health checks, ipMode, and Fanfare's iptables mode.
func TestNodeWithKubeProxy(t *testing.T) {
	if err := lab.Missing("iptables"); err != nil {
		nstest.Missing(t, err.Error())
	}
	isolated(t, func(t *testing.T) {
		s := newTestbed(t)
		must(t, s.Admin().Apply(t.Context(), besideObjects))
		proxy := s.kubeProxy(NFTables)
		speaker := s.speaker()
		t.Run("healthCheckNodePort", func(t *testing.T) { s.withT(t).healthPorts() })
		must(t, s.Admin().Apply(t.Context(), testbedPool))
		controller := s.run("controller")
		t.Run("ipMode", func(t *testing.T) { s.withT(t).ipMode(controller, speaker) })
		t.Run("iptables", func(t *testing.T) { s.withT(t).iptables(proxy) })
	})
}

var besideObjects = testbedPod("p11", "10.244.1.11", "n1", "8080", "True", "near: 'yes'") +
	testbedPod("p12", "10.244.1.12", "n1", "9090", "True", "near: 'yes'") +
	testbedPod("p21", "10.244.2.21", "n2", "8080", "True", "far: 'yes'") +
	testbedService("web", "near", "ports: [{name: http, port: 80, targetPort: web}]") +
	testbedService("away", "far", "externalTrafficPolicy: Local, ports: [{name: http, port: 80, targetPort: web}]") +
	healthService("health-p", "") + healthService("health-f",
	"labels: {service.kubernetes.io/service-proxy-name: fanfare.io},")

func healthService(name, label string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, %s namespace: default}
spec: {type: LoadBalancer, selector: {near: "yes"}, externalTrafficPolicy: Local, ports: [{name: http, port: 80, targetPort: web}, {name: more, port: 81, targetPort: 8080}]}
---
`, name, label)
}

// kubeProxy starts kube-proxy on the node with its own Kubernetes account.
func (s *testbed) kubeProxy(mode ProxyMode) *Process {
	s.Helper()
	kubeconfig := s.kubeconfig("kube-proxy")
	must(s.T, s.WriteKubeconfig(kubeconfig, "system:kube-proxy"))
	must(s.T, os.WriteFile(s.proxyConfig(), fmt.Appendf(nil, proxyConfig, mode, kubeconfig, "n1", proxyHealthz), 0o600))
	p, err := s.start("kube-proxy", "--config", s.proxyConfig())
	must(s.T, err)
	s.Cleanup(p.Kill)
	must(s.T, p.ready(s.Context(), readyLimit, func(context.Context) error {
		resp, err := http.Get("http://" + proxyHealthz.String() + "/healthz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = errors.New(resp.Status)
			}
		}
		return err
	}))
	return p
}

func (s *testbed) proxyConfig() string { return filepath.Join(s.dir, "kube-proxy.yaml") }

// removeProxy ends kube-proxy and removes its rules.
func (s *testbed) removeProxy(p *Process) {
	s.Helper()
	p.Kill()
	if out, err := exec.CommandContext(s.Context(), s.tools, "kube-proxy", "--cleanup", "--config",
		s.proxyConfig()).CombinedOutput(); err != nil {
		s.Fatalf("kube-proxy --cleanup: %v: %s", err, out)
	}
}

// service returns a Service from the API server.
func (s *testbed) service(name string) *corev1.Service {
	s.Helper()
	o, err := s.get(serviceKind, name)
	must(s.T, err)
	if o == nil {
		s.Fatalf("there is no Service %s", name)
	}
	var svc corev1.Service
	must(s.T, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &svc))
	return &svc
}

// healthPorts compares health check ports: the API server has allocated one for each of two
// Services with the same pods; kube-proxy serves one and Fanfare the other. No controller
// runs yet, so neither has an address.
func (s *testbed) healthPorts() {
	p12 := func(ready string) func() error {
		return func() error {
			return s.Admin().Apply(s.Context(), testbedPod("p12", "10.244.1.12", "n1", "9090", ready, "near: 'yes'"))
		}
	}
	for _, step := range []struct {
		what string
		do   func() error
		want string
	}{
		{"two pods", func() error {
			return nil
		}, `200 weight 2 {"localEndpoints":2,"service":{"name":"-","namespace":"default"},"serviceProxyHealthy":true}`},
		{"one is not ready", p12("False"), `200 weight 1 {"localEndpoints":1,"service":{"name":"-","namespace":"default"},"serviceProxyHealthy":true}`},
		{"none on this node", func() error {
			return errors.Join(p12("False")(), s.Admin().Apply(s.Context(),
				testbedPod("p11", "10.244.1.11", "n1", "8080", "False", "near: 'yes'")))
		}, `503 weight 0 {"localEndpoints":0,"service":{"name":"-","namespace":"default"},"serviceProxyHealthy":true}`},
		{"both again", func() error {
			return s.Admin().Apply(s.Context(), besideObjects)
		}, `200 weight 2 {"localEndpoints":2,"service":{"name":"-","namespace":"default"},"serviceProxyHealthy":true}`},
	} {
		must(s.T, step.do())
		var raw [2]string
		await(s.T, time.Minute, step.what, func() error {
			for i, name := range []string{"health-p", "health-f"} {
				said, summary, err := s.health(name)
				if err != nil {
					return err
				}
				if raw[i] = said; summary != step.want {
					return fmt.Errorf("%s: %s, want %s", name, summary, step.want)
				}
			}
			return nil
		})
		if raw[0] != raw[1] {
			s.Errorf("%s:\nkube-proxy answers\n%s\nFanfare\n%s", step.what, raw[0], raw[1])
		}
	}
	if vip, err := s.assigned("health-f"); err == nil {
		s.Errorf("it has the address %s before a controller runs", vip)
	}
}

var changing = regexp.MustCompile(`(?m)^Date: .*$`)

// health requests the health of a Service. It returns the raw answer, without date and
// name, and its summary.
func (s *testbed) health(service string) (raw, summary string, err error) {
	port := s.service(service).Spec.HealthCheckNodePort
	var c net.Conn
	s.client.Do(func() {
		c, err = net.DialTimeout("tcp", net.JoinHostPort(nodeAddr, fmt.Sprint(port)), patience)
	})
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", "", err
	}
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n")
	b, err := io.ReadAll(c)
	if err != nil {
		return "", "", err
	}
	raw = changing.ReplaceAllString(strings.ReplaceAll(string(b), `"`+service+`"`, `"-"`), "Date: -\r")
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), nil)
	if err != nil {
		return raw, "", err
	}
	var body map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		return raw, "", err
	}
	body["service"].(map[string]any)["name"] = "-"
	j, err := json.Marshal(body)
	return raw, fmt.Sprintf("%d weight %s %s", resp.StatusCode, resp.Header.Get("X-Load-Balancing-Endpoint-Weight"), j),
		err
}

// ipMode checks the effect of ipMode VIP, which the controller sets: on a node without
// Fanfare's rules, kube-proxy leads the node's own clients directly to pods on any node,
// unlike with ipMode Proxy.
func (s *testbed) ipMode(controller, speaker *program) {
	web, vip := s.at("web"), s.address("away")
	away := net.JoinHostPort(vip, "80")
	isVIP := func() error {
		ingress := s.service("away").Status.LoadBalancer.Ingress
		if len(ingress) != 1 || ingress[0].IP != vip || ingress[0].IPMode == nil ||
			*ingress[0].IPMode != corev1.LoadBalancerIPModeVIP {
			return fmt.Errorf("status has %v", ingress)
		}
		return nil
	}
	must(s.T, isVIP())
	s.awaitSource(s.client, clientAddr(2), web, clientAddr(2)) // Fanfare's
	speaker.kill()
	if out, err := exec.CommandContext(s.Context(), s.binary, "cleanup", "--run-dir",
		s.runDir()).CombinedOutput(); err != nil {
		s.Fatalf("cleanup: %v: %s", err, out)
	}
	s.awaitSource(s.client, clientAddr(2), web, localGateway) // kube-proxy's
	const pod = "10.244.1.13"
	s.awaitSource(s.local, pod, away, pod)
	if !*oldest { // In nftables mode, kube-proxy 1.32 drops the node's own packets (kubernetes#131765).
		s.awaitSource(s.node, nodeAddr, away, remoteGateway)
	}

	controller.kill()
	must(s.T, s.Admin().Patch(s.Context(), serviceKind, "default", "away",
		fmt.Sprintf(`{"status": {"loadBalancer": {"ingress": [{"ip": %q, "ipMode": "Proxy"}]}}}`, vip), "status"))
	await(s.T, time.Minute, "kube-proxy's rules without the address", func() error {
		f, err := dialFor(s.Context(), silence, s.local, "tcp", pod, away)
		if err != nil {
			return nil
		}
		f.Close()
		return errAnswered
	})
	s.run("controller")
	await(s.T, time.Minute, "ipMode VIP again", isVIP)
	s.awaitSource(s.local, pod, away, pod)
}

// awaitSource waits until pods see a client with the given address, ten times in a row.
func (s *testbed) awaitSource(from *nstest.NS, source, to, as string) {
	s.Helper()
	await(s.T, time.Minute, fmt.Sprintf("%s at %s with the source %s", source, to, as), func() error {
		for range 10 {
			a, err := s.ask(shortTimeout, from, source, to)
			if err != nil {
				return err
			}
			if a.saw.Addr().String() != as {
				return fmt.Errorf("%s saw %s", a.pod, a.saw)
			}
		}
		return nil
	})
}

// iptables checks Fanfare's iptables mode beside kube-proxy in either mode: Fanfare serves
// addresses, kube-proxy the rest. Through kube-proxy a pod of this node sees the node
// instead of an external client.
func (s *testbed) iptables(proxy *Process) {
	web := s.service("web").Spec
	vip, clusterIP := s.at("web"), net.JoinHostPort(web.ClusterIP, "80")
	nodePort := net.JoinHostPort(nodeAddr, fmt.Sprint(web.Ports[0].NodePort))
	checkPaths := func() {
		s.Helper()
		s.awaitSource(s.client, clientAddr(2), vip, clientAddr(2))
		s.awaitSource(s.remote, "10.244.2.21", vip, "10.244.2.21")
		s.awaitSource(s.client, clientAddr(2), nodePort, localGateway)
		s.awaitSource(s.remote, "10.244.2.21", clusterIP, "10.244.2.21")
	}
	s.removeProxy(proxy)
	proxy = s.kubeProxy(IPTables)
	speaker := s.speaker("--proxy-mode=iptables")
	checkPaths()
	s.awaitObstacle("")
	proxy.Kill()
	proxy = s.kubeProxy(IPTables) // It inserts its rules first again.
	checkPaths()

	speaker.kill()
	s.removeProxy(proxy)
	s.kubeProxy(NFTables)
	s.speaker("--proxy-mode=iptables")
	s.awaitObstacle("chain ip kube-proxy nat-prerouting")
	s.awaitSource(s.client, clientAddr(2), nodePort, localGateway)
	s.awaitSource(s.remote, "10.244.2.21", clusterIP, "10.244.2.21")
	s.awaitAnswer(vip)
}

// awaitObstacle waits until the speaker reports this obstacle to traffic; empty: none.
func (s *testbed) awaitObstacle(about string) {
	s.Helper()
	await(s.T, time.Minute, "obstacle "+about, func() error {
		out, err := exec.CommandContext(s.Context(), s.binary, "status", "--json", "--run-dir", s.runDir()).Output()
		if err != nil {
			return err
		}
		var st struct {
			Proxy struct {
				Obstacles []struct{ Code, About, Message string }
			}
		}
		if err := json.Unmarshal(out, &st); err != nil {
			return err
		}
		switch o := st.Proxy.Obstacles; {
		case about == "" && len(o) == 0, len(o) == 1 && o[0].About == about && o[0].Code == "TranslatedBefore":
			return nil
		default:
			return fmt.Errorf("%+v", o)
		}
	})
}
