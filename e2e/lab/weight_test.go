package lab

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// With externalTrafficPolicy Local a router balances by node, so that a single pod of a
// node gets as many connections as three of another. With weights each of the four pods
// gets a quarter. The change loses no request and no session.
func TestBGPWeightsShareByEndpoints(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	addPod(t, l, "p23")
	pods := []string{"p11", "p21", "p22", "p23"}
	vip := serve(t, l, Service{Name: "weighed", Policy: localTraffic, Endpoints: At(pods...)}, "n1", "n2")
	await(t, l.Router.AwaitWeights(ctx, vip, "n1 1, n2 1"))
	expectShares(t, requests(t, l, 1000, port(vip, 80)), 9,
		map[string]float64{"p11": 50, "p21": 50. / 3, "p22": 50. / 3, "p23": 50. / 3})

	before := sessionLogLines(l)
	weighByEndpoints(t, l)
	await(t, l.Router.AwaitWeights(ctx, vip, "n1 25, n2 75"))
	expectShares(t, requests(t, l, 10_000, port(vip, 80)), 2,
		map[string]float64{"p11": 25, "p21": 25, "p22": 25, "p23": 25})

	text, err := l.Speaker("n2").StatusText(ctx)
	await(t, err)
	if !strings.Contains(text, "yes, weight 3") {
		t.Errorf("n2 does not show its weight:\n%s", text)
	}
	if opened := sessionLogLines(l); opened != before {
		t.Errorf("sessions changed: %d log lines about them, %d before", opened, before)
	}

	// The kernel's weights follow the pods.
	await(t, l.Cluster.Put(Service{Name: "weighed", Policy: localTraffic, Endpoints: At("p11", "p12", "p21", "p22")}))
	await(t, l.Router.AwaitWeights(ctx, vip, "n1 50, n2 50"))
}

// BIRD sets weights from the community by a filter.
func TestBGPWeightsWithBIRD(t *testing.T) {
	l, ctx := laboratoryWithBIRD(t), t.Context()
	svc := Service{Name: "weighed", Policy: localTraffic, Endpoints: At("p11", "p21", "p22")}
	vip := serve(t, l, svc, "n1", "n2")
	weighByEndpoints(t, l)
	await(t, l.Router.AwaitWeights(ctx, vip, "n1 1, n2 2"))
	svc.Endpoints = At("p11", "p12", "p21")
	await(t, l.Cluster.Put(svc))
	await(t, l.Router.AwaitWeights(ctx, vip, "n1 2, n2 1"))
}

// weighByEndpoints turns weights on for the duration of a test.
func weighByEndpoints(t *testing.T, l *Lab) {
	t.Helper()
	tor1, err := os.ReadFile(filepath.Join(l.Objects, "tor1.yaml"))
	await(t, err)
	t.Cleanup(func() { await(t, l.Cluster.PutText("tor1", string(tor1))) })
	await(t, l.Cluster.PutText("tor1", string(tor1)+"  weightByEndpoints: true\n"))
}

// sessionLogLines counts the speakers' log lines about sessions.
func sessionLogLines(l *Lab) (lines int) {
	for _, n := range NodeNames {
		lines += strings.Count(l.Speaker(n).Log(), `msg="session `)
	}
	return lines
}

// addPod adds a pod to the topology for a test.
func addPod(t *testing.T, l *Lab, name string) {
	t.Helper()
	ctx, node, number := t.Context(), NodeOf(name), name[2:]
	addr4, addr6, gateway := PodAddr(name, "IPv4"), PodAddr(name, "IPv6"), "10.244."+name[1:2]+".1"
	pod := Node{
		Name: name, Sysctls: map[string]string{
			"net.ipv6.conf.all.disable_ipv6": "0", "net.ipv6.conf.default.accept_dad": "0",
		},
	}
	await(t, l.addNamespace(ctx, pod))
	t.Cleanup(func() {
		l.namespaces[name].Close()
		delete(l.namespaces, name)
		if out, err := exec.Command("ip", "netns", "delete", l.namespaceName(name)).CombinedOutput(); err != nil {
			t.Errorf("ip netns delete: %v: %s", err, out)
		}
	})
	iface := "pod" + number
	await(t, l.addLink(ctx, Link{Interface{node, iface}, Interface{name, "eth1"}}))
	t.Cleanup(func() {
		_, err := l.namespaces[node].Run(context.WithoutCancel(ctx), "ip", "link", "delete", iface)
		await(t, err)
	})
	for on, commands := range map[string]string{
		node: fmt.Sprintf("addr add %s/32 dev %s\naddr add fe80::1/64 dev %[2]s nodad\nroute add %[3]s/32 dev "+
			"%[2]s\nroute add %[4]s/128 dev %[2]s", gateway, iface, addr4, addr6),
		name: fmt.Sprintf("addr add %s/32 dev eth1\naddr add %s/128 dev eth1 nodad\nroute add %[3]s/32 dev "+
			"eth1\nroute add default via %[3]s\nroute add default via fe80::1 dev eth1", addr4, addr6, gateway),
	} {
		for line := range strings.Lines(commands) {
			_, err := l.namespaces[on].Run(ctx, append([]string{"ip"}, strings.Fields(line)...)...)
			await(t, err)
		}
	}
	await(t, l.StartPod(ctx, name))
	t.Cleanup(func() {
		l.pods[name].Kill()
		delete(l.pods, name)
	})
}

// requests makes n requests on a connection each, and counts the answers of each pod.
func requests(t *testing.T, l *Lab, n int, to netip.AddrPort) map[string]int {
	t.Helper()
	var mu sync.Mutex
	answers := map[string]int{}
	var all sync.WaitGroup
	left := make(chan struct{}, n)
	for range n {
		left <- struct{}{}
	}
	close(left)
	for range 32 {
		all.Go(func() {
			for range left {
				a, err := l.Client.Get(t.Context(), netip.AddrPort{}, to)
				mu.Lock()
				if err != nil {
					answers[err.Error()]++
				}
				answers[a.Pod]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return answers
}

// expectShares checks the share of each pod in percent, within a tolerance in points.
func expectShares(t *testing.T, answers map[string]int, tolerance float64, want map[string]float64) {
	t.Helper()
	sum := 0
	for _, n := range answers {
		sum += n
	}
	var shares []string
	for _, pod := range slices.Sorted(maps.Keys(answers)) {
		share := 100 * float64(answers[pod]) / float64(sum)
		shares = append(shares, fmt.Sprintf("%s %.1f %%", cmp.Or(pod, "no pod"), share))
		if math.Abs(share-want[pod]) > tolerance {
			t.Errorf("%s answered %d of %d requests, %.1f %%: want %.1f %%, give or take %g", pod, answers[pod], sum,
				share, want[pod], tolerance)
		}
	}
	t.Logf("%d requests: %s", sum, strings.Join(shares, ", "))
	if len(answers) != len(want) {
		t.Errorf("answers of %v: want %v", answers, want)
	}
}
