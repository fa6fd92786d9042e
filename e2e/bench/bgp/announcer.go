package bgp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// An announcer is a program that announces routes to the routers of a world.
type announcer interface {
	// prepare does the work that is not measured.
	prepare(ctx context.Context, w *world, routes int) error
	// start starts the measured program.
	start(w *world) (*exec.Cmd, error)
	// announce adds a route to the others, or removes it.
	announce(ctx context.Context, i int, on bool) error
}

// An announcerKind creates an announcer for each start.
type announcerKind struct {
	name string
	make func(o options) announcer
	// silent has no router. It shows the memory that is not used for BGP.
	silent bool
}

var announcerKinds = []announcerKind{
	{name: "Fanfare", make: func(o options) announcer { return &fanfare{binary: o.Binary, peers: o.routers} }},
	{name: "FRR", make: func(o options) announcer { return &frr{routers: o.routers} }},
	{name: "Fanfare, no router", make: func(o options) announcer { return &fanfare{binary: o.Binary} }, silent: true},
}

// fanfare is the speaker with a folder of YAML. It does all the work of a speaker on a
// node: it forwards an address before it announces it.
type fanfare struct {
	binary string
	peers  int
	dir    string // of YAML
	runDir string
	// saved makes it start without the API server, with the state that a speaker had saved, instead
	// of with the folder.
	saved bool
}

const fanfareNode = `apiVersion: v1
kind: Node
metadata: {name: node}
spec: {podCIDR: 10.9.0.0/16, podCIDRs: [10.9.0.0/16]}
status:
  addresses: [{type: InternalIP, address: %[1]s}]
  conditions: [{type: Ready, status: "True"}]
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: all}
spec: {announce: BGP, addresses: ["%[2]s-%[3]s"]}
---
`

const fanfarePeer = `apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: r%[1]d}
spec: {peerAddress: %[2]s, peerASN: %[3]d, myASN: %[4]d, connectTime: 1s}
---
`

const fanfareService = `apiVersion: v1
kind: Service
metadata: {namespace: bench, name: s%[1]d}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  ports: [{protocol: TCP, port: 80}]
status: {loadBalancer: {ingress: [{ip: %[2]s}]}}
---
`

const fanfareSlice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: bench, name: s%[1]d, labels: {kubernetes.io/service-name: s%[1]d}}
addressType: IPv4
ports: [{protocol: TCP, port: 8080}]
endpoints: [{addresses: [10.9.%[2]d.%[3]d], nodeName: node, conditions: {ready: %[4]t}}]
---
`

// service returns a Service and its only pod, on the node. If the pod is not ready, there
// is nothing to announce.
func service(i int, ready bool) string {
	return fmt.Sprintf(fanfareService, i, vip(i)) + fmt.Sprintf(fanfareSlice, i, i/250, 1+i%250, ready)
}

func (f *fanfare) prepare(_ context.Context, w *world, routes int) error {
	f.dir, f.runDir = w.path("objects"), w.path("run")
	for _, d := range []string{f.dir, f.runDir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, fanfareNode, nodeAddr, vip(0), vip(routes))
	for i := range f.peers {
		fmt.Fprintf(&b, fanfarePeer, i, routerAddr(i), routersASN, nodeASN)
	}
	for i := range routes {
		b.WriteString(service(i, true))
	}
	if f.saved {
		return f.save(w, routes, b.String())
	}
	return errors.Join(os.WriteFile(filepath.Join(f.dir, "all.yaml"), []byte(b.String()), 0o644),
		f.place(routes, false))
}

func (f *fanfare) start(w *world) (*exec.Cmd, error) {
	if f.saved {
		return w.start(f.binary, "speaker", "--kubeconfig", w.path(kubeconfig), "--node-name", "node", "--run-dir",
			f.runDir)
	}
	return w.start(f.binary, "speaker", "--files", f.dir, "--node-name", "node", "--run-dir", f.runDir)
}

func (f *fanfare) announce(_ context.Context, i int, on bool) error { return f.place(i, on) }

// place writes the file of one Service and renames it into the folder.
func (f *fanfare) place(i int, ready bool) error {
	hidden := filepath.Join(f.dir, ".one")
	if err := os.WriteFile(hidden, []byte(service(i, ready)), 0o644); err != nil {
		return err
	}
	return os.Rename(hidden, filepath.Join(f.dir, "one.yaml"))
}
