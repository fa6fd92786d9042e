package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/speaker"
)

// podOutside is a cluster whose network plug-in gives pods other addresses than podCIDRs, and
// a Service with a pod on another node only.
const podOutside = `
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDRs: [10.244.1.0/24]}
status: {addresses: [{type: InternalIP, address: 10.0.0.1}]}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [192.0.2.0/24]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.0.0.2], nodeName: n2, conditions: {ready: true}}]
`

// A pod reaches a Service with externalTrafficPolicy Local whose pods are on other nodes, and
// keeps its address, also if its own address is outside of the Node's podCIDRs. With node-cidr it
// counts as a client from outside, and its packets are dropped.
func TestPodOutsideOfPodCIDRs(t *testing.T) {
	for _, tt := range []struct {
		detect, iface string
		reached       bool
	}{
		{"auto", "cali1", true},
		{"node-cidr", "cali1", false},
	} {
		t.Run(tt.detect+" "+tt.iface, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				node, pod, other := nstest.Node(t), nstest.New(t, "pod"), nstest.New(t, "other")
				nstest.Link(t, node, tt.iface, pod, "eth0")
				nstest.Link(t, node, "eth0", other, "eth0")
				node.Addr("eth0", "10.0.0.1/24")
				node.Addr(tt.iface, "10.9.0.1/24")
				node.Forward()
				pod.Addr("eth0", "10.9.0.5/24")
				pod.Route("0.0.0.0/0", "10.9.0.1", "")
				other.Addr("eth0", "10.0.0.2/24")
				other.Route("10.9.0.0/24", "10.0.0.1", "")
				clients := listen(t, other, "10.0.0.2:8080")
				status := startSpeaker(t, podOutside, "--detect-local="+tt.detect)
				await(t, "forwarding", func() error {
					s, err := status()
					if err == nil && !(len(s.Addresses) == 1 && s.Addresses[0].Programmed) {
						err = fmt.Errorf("addresses %+v", s.Addresses)
					}
					return err
				})
				err := dial(pod, "192.0.2.10:80")
				if (err == nil) != tt.reached {
					t.Fatalf("dial: %v", err)
				}
				if tt.reached {
					if got := <-clients; got != "10.9.0.5" {
						t.Errorf("the pod came as %s", got)
					}
				}
			})
		})
	}
}

// startSpeaker runs a speaker of node n1 in this namespace until the test ends.
func startSpeaker(t *testing.T, objects string, args ...string) (status func() (*speaker.Status, error)) {
	t.Helper()
	files, run := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(files, "objects.yaml"), []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	var flags speakerFlags
	set := pflag.NewFlagSet("speaker", pflag.ContinueOnError)
	flags.add(set)
	if err := set.Parse(append([]string{"--files", files, "--node-name", "n1", "--run-dir", run}, args...)); err !=
		nil {
		t.Fatal(err)
	}
	o, err := flags.options(slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- speaker.Run(ctx, ctx, o) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("speaker: %v", err)
		}
	})
	return func() (*speaker.Status, error) { return speaker.FetchStatus(t.Context(), run) }
}

// listen accepts connections, and returns a channel of their clients' addresses.
func listen(t *testing.T, ns *nstest.NS, addr string) <-chan string {
	t.Helper()
	clients := make(chan string, 10)
	var l net.Listener
	var err error
	ns.Do(func() { l, err = net.Listen("tcp", addr) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			clients <- c.RemoteAddr().(*net.TCPAddr).IP.String()
			c.Close()
		}
	}()
	return clients
}

// dial opens a connection. A SYN that is dropped is not sent again within the time.
func dial(ns *nstest.NS, addr string) (err error) {
	ns.Do(func() {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", addr, 900*time.Millisecond); err == nil {
			c.Close()
		}
	})
	return err
}

// await waits until f returns no error.
func await(t *testing.T, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
