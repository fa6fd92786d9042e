package kube

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// spreadNode returns a Node and its SpeakerStatus.
func spreadNode(name string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %[1]s}
---
apiVersion: fanfare.io/v1alpha1
kind: SpeakerStatus
metadata: {name: %[1]s}
status: {interfaces: [{name: eth0, mac: "02:00:00:00:00:01", prefixes: [192.0.2.0/24]}]}
`, name)
}

// 30 Services on three nodes: ten addresses each, by a controller that has only the rights
// of its role. When a node is removed, only its ten addresses move; when it is back, it
// gets ten. An error in an L2Advertisement is in its status.
func TestSpreadBalancesAddresses(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		must(t, f.Admin().Apply(t.Context(), `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: Advertised, addresses: [192.0.2.0/26]}
---
apiVersion: fanfare.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec: {pools: [lan], interfaces: [eth0, "bond*"]}
---
apiVersion: fanfare.io/v1alpha1
kind: L2Advertisement
metadata: {name: misspelt}
spec: {interfaces: [eht0]}`))
		for _, n := range []string{"n1", "n2", "n3"} {
			must(t, f.Admin().Create(t.Context(), spreadNode(n)))
		}
		var services []string
		for i := range 30 {
			services = append(services, fmt.Sprintf(
				"{apiVersion: v1, kind: Service, metadata: {namespace: default, name: s%02d}, spec: {type: "+
					"LoadBalancer, ports: [{port: 80}]}}", i))
		}
		must(t, f.Admin().Apply(t.Context(), strings.Join(services, "\n---\n")))
		f.run("controller", "--l2-settle-time", "1s")

		first := f.awaitSpread("map[n1:10 n2:10 n3:10]")
		f.awaitL2Status("lan", "3 True nodes can announce; no selected node has an interface bond* (in a subnet that "+
			"has addresses of a pool)")
		f.awaitL2Status("misspelt", "0 False no selected node has one of its interfaces: eht0")
		must(t, f.Admin().Delete(t.Context(), "{apiVersion: v1, kind: Node, metadata: {name: n3}}"))
		second := f.awaitSpread("map[n1:15 n2:15]")
		if n := moved(first, second); n != 10 {
			t.Errorf("%d addresses moved when a node with 10 was removed", n)
		}
		must(t, f.Admin().Apply(t.Context(), "{apiVersion: v1, kind: Node, metadata: {name: n3}}"))
		if n := moved(second, f.awaitSpread("map[n1:10 n2:10 n3:10]")); n != 10 {
			t.Errorf("%d addresses moved when the node was back: want 10", n)
		}
	})
}

// The speaker reports its interfaces to the API server. From these the controller knows
// that the node can announce the address, and names the node in the claim; the speaker
// announces the address.
func TestLayer2FromAPIServer(t *testing.T) {
	isolated(t, func(t *testing.T) {
		node, link := nstest.Node(t), nstest.New(t, "link")
		nstest.Link(t, node, "eth0", link, "eth0")
		node.Addr("eth0", "192.0.2.1/24")
		node.Up("eth0")
		link.Up("eth0")
		f := newFanfare(t)
		f.run("controller", "--l2-settle-time", "1s")
		f.speaker()
		pool, _, _ := strings.Cut(oneNode, "---\napiVersion: fanfare.io/v1alpha1\nkind: BGPPeer")
		pool = strings.NewReplacer("192.0.2.0/24", "192.0.2.64/26", "announce: BGP", "announce: L2").Replace(pool)
		must(t, f.Admin().Apply(t.Context(), pool+"---"+oneService("web", "10.244.1.5")))
		f.awaitSpread("map[n1:1]")
		await(t, time.Minute, "the announcement over layer 2", func() error {
			s, err := f.status()
			if err != nil {
				return err
			}
			for _, a := range s.Addresses {
				for _, r := range a.Reasons {
					if r.Code == "Announced" && r.Message == "announced on eth0 (the only candidate)" {
						return nil
					}
				}
			}
			return fmt.Errorf("status %+v", s)
		})
	})
}

// awaitSpread waits until nodes have as many addresses as wanted, and returns the node of
// each address.
func (f *fanfare) awaitSpread(want string) map[string]string {
	f.Helper()
	var at map[string]string
	await(f.T, time.Minute, "addresses on "+want, func() error {
		claims, err := f.Admin().List(f.Context(), kindOf("AddressClaim"))
		if err != nil {
			return err
		}
		at = map[string]string{}
		load := map[string]int{}
		for _, c := range claims {
			node, _, _ := unstructured.NestedString(c.Object, "spec", "node")
			at[c.GetName()] = node
			load[node]++
		}
		if got := fmt.Sprint(load); got != want {
			return errors.New("they are on " + got)
		}
		return nil
	})
	return at
}

func moved(before, after map[string]string) (n int) {
	for addr, node := range after {
		if before[addr] != node {
			n++
		}
	}
	return n
}

// awaitL2Status waits for the status of an L2Advertisement as a line.
func (f *fanfare) awaitL2Status(name, want string) {
	f.Helper()
	await(f.T, time.Minute, "the status of L2Advertisement "+name, func() error {
		o, err := f.get(kindOf("L2Advertisement"), name)
		if err != nil || o == nil {
			return errors.Join(err, errors.New("there is no such object"))
		}
		nodes, _, _ := unstructured.NestedInt64(o.Object, "status", "nodes")
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		if len(conditions) != 1 {
			return fmt.Errorf("status %v", o.Object["status"])
		}
		c := conditions[0].(map[string]any)
		if got := fmt.Sprintf("%d %s %s", nodes, c["status"], c["message"]); got != want {
			return errors.New("got " + got)
		}
		return nil
	})
}
