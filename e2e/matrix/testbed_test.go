package matrix

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/e2e/binary"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A testbed is the lab of a feature.
type testbed struct {
	*lab.Lab
	feature
	kube   *kube.Lab // nil without a control plane
	client *lab.Client
	vip    netip.Addr
	prefix netip.Prefix // that the nodes announce for it
	node   string       // the node that disturbances hit; the owner of a layer 2 address
	nodes  string       // the text of all Nodes
	next   string       // path of the program's next version
	bpffs  string       // a BPF file system
}

const containerlab = "../containerlab"

// programs are paths of this version of the program, and of the next.
type programs struct{ fanfare, next string }

func buildPrograms(ctx context.Context, dir string) (p programs, err error) {
	p = programs{filepath.Join(dir, "fanfare"), filepath.Join(dir, "next")}
	return p, errors.Join(binary.Build(ctx, p.fanfare), binary.BuildNext(ctx, p.next))
}

// up builds a lab for a feature, and waits until the feature's Service works. With api, the lab has a
// control plane.
func (f feature) up(ctx context.Context, p programs, api bool) (*testbed, error) {
	b := &testbed{feature: f, node: "n1", next: p.next}
	if err := b.build(ctx, p, api); err != nil {
		return nil, err
	}
	if err := b.start(ctx); err != nil {
		return nil, errors.Join(err, errors.New(b.logs(time.Time{})), b.down())
	}
	return b, nil
}

// build builds the lab: with a control plane, or with a folder of files.
func (b *testbed) build(ctx context.Context, p programs, api bool) (err error) {
	id, objects := fmt.Sprintf("m%d", os.Getpid()%100_000), containerlab+"/cluster"
	if b.calico {
		objects = containerlab + "/calico"
	}
	var overlays []string
	for _, file := range b.overlays {
		overlays = append(overlays, filepath.Join(containerlab, "overlays", file))
	}
	if api {
		tools, err := kube.Tools(ctx, true)
		if err != nil {
			return err
		}
		b.kube, err = kube.UpLab(ctx, kube.LabOptions{ID: id, Source: "../..", Fanfare: p.fanfare, Tools: tools,
			Members: true, L2: b.layer2, Overlays: overlays, RouterConfig: b.router, Objects: objects})
		if err == nil {
			b.Lab = b.kube.Lab
		}
		return err
	}
	o := lab.Options{ID: id, Topology: containerlab + "/fanfare.clab.yml", Objects: objects, Binary: p.fanfare,
		Members: true, Slack: *slack, Overlays: overlays, RouterConfig: b.router}
	if b.layer2 {
		o = o.ForL2(containerlab)
	}
	b.Lab, err = lab.Up(ctx, o)
	return err
}

func (b *testbed) down() error {
	var err error
	if b.bpffs != "" {
		err = unix.Unmount(b.bpffs, unix.MNT_DETACH)
	}
	if b.kube != nil {
		return errors.Join(err, b.kube.Down())
	}
	return errors.Join(err, b.Lab.Down())
}

// start starts the speakers and creates the Service.
func (b *testbed) start(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(b.Objects, "nodes.yaml"))
	if err != nil {
		return err
	}
	b.nodes = string(text)
	if err := b.configure(ctx); err != nil {
		return err
	}
	for _, n := range lab.NodeNames {
		if err := b.Speaker(n).Start(); err != nil {
			return err
		}
	}
	b.service.Name = b.name
	if err := b.Cluster.Put(b.service); err != nil {
		return err
	}
	if err := b.Cluster.Put(neighbour); err != nil {
		return err
	}
	if b.vip, err = b.AwaitAddress(ctx, "shop/"+b.name, b.ipv6); err != nil {
		return err
	}
	b.prefix = netip.PrefixFrom(b.vip, b.vip.BitLen())
	if b.layer2 {
		b.Observer.LingerL2(shortLinger)
		if err := b.awaitLastOwner(ctx); err != nil {
			return err
		}
	}
	if err := b.awaitWhole(ctx); err != nil {
		return err
	}
	if b.announce != nil {
		return b.announce(ctx, b)
	}
	return nil
}

// awaitLastOwner waits for the node that has the address when all have been there for a while:
// a node that started later than the first owner is in its hold-down, whose end is no event.
func (b *testbed) awaitLastOwner(ctx context.Context) error {
	_, err := b.AwaitOwner(ctx, b.vip)
	if err == nil {
		err = pause(ctx, holdDown)
	}
	if err == nil {
		b.node, err = b.AwaitOwner(ctx, b.vip)
	}
	return err
}

// holdDown is the shortest time in which a node that has returned takes no address, and some
// time to decide.
const holdDown = 2500 * time.Millisecond

// neighbour is another Service, which disturbances change.
var neighbour = lab.Service{Name: "neighbour", Endpoints: lab.At("p12", "p22")}

// configure prepares what the speakers find when they start.
func (b *testbed) configure(ctx context.Context) error {
	// A client of its own, which does not ask for conntrack entries when a request is lost: that
	// would take the processors for seconds when conntrack is full.
	b.client = &lab.Client{Namespace: b.Namespace("client")}
	if b.layer2 {
		b.client.Namespace = b.Namespace("host")
	}
	b.client.CyclePorts()
	if b.fastPath {
		dir := filepath.Join(b.Dir(), "bpf")
		if err := errors.Join(os.Mkdir(dir, 0o755), unix.Mount("bpf", dir, "bpf", 0, "")); err != nil {
			return err
		}
		b.bpffs = dir
	}
	if b.iptables {
		if err := b.Observer.PollSets(); err != nil {
			return err
		}
	}
	for _, n := range lab.NodeNames {
		b.Speaker(n).Flags = b.speakerFlags(n)
	}
	if text, err := b.peerText(b.Objects); err != nil || text != "" {
		if err := errors.Join(err, b.Cluster.PutText("tor1", text)); err != nil {
			return err
		}
	}
	if b.calico {
		return b.StartCalico(ctx, lab.FelixIPTables, calicoPolicy...)
	}
	if b.proxy != "" {
		return b.kube.StartProxies(ctx, b.proxy)
	}
	return nil
}

// awaitWhole waits until everything is as it was in the beginning.
func (b *testbed) awaitWhole(ctx context.Context) error {
	if err := b.AwaitReady(ctx, lab.NodeNames...); err != nil {
		return err
	}
	if err := b.awaitAnnounced(ctx); err != nil {
		return err
	}
	if err := b.awaitInUse(ctx); err != nil {
		return err
	}
	return lab.Await(ctx, lab.Settle, "the members", func() error {
		for _, n := range lab.NodeNames {
			st, err := b.Speaker(n).Status(ctx)
			if err != nil {
				return err
			}
			alive := 0
			for _, m := range st.Members.Nodes {
				if m.State == "alive" {
					alive++
				}
			}
			if alive != len(lab.NodeNames) || len(st.Members.LeftOut) > 0 {
				return fmt.Errorf("%s shows %+v", n, st.Members)
			}
		}
		return nil
	})
}

// awaitInUse waits until the feature is used, where nothing else shows that.
func (b *testbed) awaitInUse(ctx context.Context) error {
	if b.bfd {
		return lab.Await(ctx, lab.Settle, "BFD with all nodes", func() error {
			text, err := b.Router.Ask(ctx, "show bfd peers json")
			if up := strings.Count(text, `"status":"up"`); err == nil && up != len(lab.NodeNames) {
				err = fmt.Errorf("it is up with %d: %s", up, text)
			}
			return err
		})
	}
	if !b.fastPath {
		return nil
	}
	return lab.Await(ctx, lab.Settle, "the fast path", func() error {
		for _, n := range lab.NodeNames {
			text, err := b.Speaker(n).StatusText(ctx)
			if err != nil {
				return err
			}
			// The other Service has pods on several nodes.
			if !strings.Contains(text, "bypassing netfilter: 3 of 6 frontends") {
				return fmt.Errorf("%s shows\n%s", n, text)
			}
		}
		return nil
	})
}

// awaitAnnounced waits until clients' packets arrive where they should.
func (b *testbed) awaitAnnounced(ctx context.Context) error {
	if b.layer2 {
		_, err := b.AwaitOwner(ctx, b.vip, b.node)
		return err
	}
	if err := b.AwaitSessions(ctx, lab.NodeNames...); err != nil {
		return err
	}
	if b.weights != "" {
		return b.Router.AwaitWeights(ctx, b.vip, b.weights)
	}
	return b.Router.AwaitVia(ctx, lab.Settle, b.prefix, lab.NodeNames...)
}

// others returns the nodes that disturbances do not hit.
func (b *testbed) others() []string {
	return slices.DeleteFunc(slices.Clone(lab.NodeNames), func(n string) bool { return n == b.node })
}

// awaitLeft waits until clients' packets arrive at other nodes only.
func (b *testbed) awaitLeft(ctx context.Context) error {
	if b.layer2 {
		return lab.Await(ctx, lab.Settle, "another node to get the host's packets", func() error {
			n, err := b.Neighbour(b.vip)
			if err != nil {
				return err
			}
			mac, err := b.MAC(b.node)
			// Without an entry the host sends to no node until it asks.
			if err == nil && n.State != "" && (n.MAC == "" || n.MAC == mac) {
				err = fmt.Errorf("the host has %s (%s), %s is %s", n.MAC, n.State, b.node, mac)
			}
			return err
		})
	}
	return b.Router.AwaitVia(ctx, lab.Settle, b.prefix, b.others()...)
}

// putNode writes all Nodes, with a change of the node's text; empty: without the node.
func (b *testbed) putNode(change func(text string) string) error {
	var texts []string
	for text := range strings.SplitSeq(b.nodes, "\n---\n") {
		if strings.Contains(text, "\n  name: "+b.node+"\n") {
			text = change(text)
		}
		if text != "" {
			texts = append(texts, text)
		}
	}
	return b.Cluster.PutText("nodes", strings.Join(texts, "\n---\n"))
}

func asItIs(text string) string { return text }

func without(string) string { return "" }

func leaving(text string) string {
	return strings.Replace(text, "\nspec:\n", "\nspec:\n  taints: [{key: fanfare.io/leaving, effect: NoSchedule}]\n", 1)
}

// repair undoes what a failed cell has left.
func (b *testbed) repair(ctx context.Context) error {
	errs := []error{b.RepairNetwork(ctx), b.putNode(asItIs)}
	for _, n := range lab.NodeNames {
		s := b.Speaker(n)
		s.Binary = ""
		if !s.Running() {
			errs = append(errs, s.Start())
			continue
		}
		errs = append(errs, s.Resume())
	}
	if b.kube != nil && !b.kube.Kubernetes.APIServer.Alive() {
		errs = append(errs, b.kube.Kubernetes.StartAPIServer(ctx))
	}
	return errors.Join(append(errs, b.awaitWhole(ctx))...)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
