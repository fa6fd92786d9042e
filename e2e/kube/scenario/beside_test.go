package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// Steps for a cluster with a control plane and kube-proxy.

var (
	serviceKind = schema.GroupVersionKind{Version: "v1", Kind: "Service"}
	sliceKind   = schema.GroupVersionKind{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"}
)

// shopPod returns a ready pod of the lab.
func shopPod(pod string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: %[1]s, labels: {app: walker}}
spec: {nodeName: %[2]s, terminationGracePeriodSeconds: 30, containers: [{name: web, image: web}]}
status:
  phase: Running
  podIP: %[3]s
  podIPs: [{ip: %[3]s}]
  conditions: [{type: Ready, status: "True"}]
`, pod, lab.NodeOf(pod), lab.PodAddr(pod, "IPv4"))
}

// orderlyMove moves a Service's only pod as Kubernetes does: a new pod becomes ready, the
// old one gets SIGTERM, still serves, and is removed. Kubernetes' own controller writes the
// EndpointSlices.
func (l cluster) orderlyMove(ctx context.Context, s *lab.StepRun) (err error) {
	admin := l.Kubernetes.Admin()
	defer func() {
		err = errors.Join(err, admin.Delete(context.WithoutCancel(ctx), shopPod("p11")+"---"+shopPod("p21")),
			s.StartPod(context.WithoutCancel(ctx), "p11"))
	}()
	if err := admin.Apply(ctx, shopPod("p11")); err != nil {
		return err
	}
	var vip netip.Addr
	defer func() { s.Drop(ctx, &err, "walker", vip) }()
	if err := s.Cluster.PutText("walker", localService("walker", "", "{app: walker}")); err != nil {
		return err
	}
	if vip, err = s.AwaitAddress(ctx, "shop/walker", false); err != nil {
		return err
	}
	if err := s.Router.AwaitNextHops(ctx, lab.Settle, vip, "n1"); err != nil {
		return err
	}
	var left time.Time
	var during string
	const serving = "p11@n1 ready=false serving=true terminating=true"
	began, r, err := s.LoadWhile(ctx, vip, 7*time.Second,
		lab.Moment{At: 1500 * time.Millisecond, Do: func() error { return admin.Apply(ctx, shopPod("p21")) }},
		lab.Moment{
			At: 3 * time.Second, Do: func() error { left = time.Now(); return admin.Terminate(ctx, "shop", "p11") },
		},
		lab.Moment{At: 4500 * time.Millisecond, Do: func() error {
			return lab.Await(ctx, lab.Settle, "the slices to contain "+serving, func() (err error) {
				if during, err = l.describeSlices(ctx, "walker"); err == nil && !strings.Contains(during, serving) {
					err = errors.New(during)
				}
				return err
			})
		}},
		lab.Moment{At: 5 * time.Second, Do: func() error {
			err := s.Router.AwaitNextHops(ctx, lab.Settle, vip, "n2")
			return errors.Join(err, s.Pod("p11").Stop(ctx), admin.Delete(ctx, shopPod("p11")))
		}},
	)
	if err != nil {
		return err
	}
	s.Action("%d new connections a second for 7 s to a Service with a selector; "+
		"endpointslice-controller writes its slices\n"+
		"1.5 s: Pod p21 on n2 is ready too; 3.0 s: Pod p11 on n1 is deleted with a grace period of 30 s, and serves; "+
		"5.0 s: it is removed", lab.Rate)
	s.Observed("at 4.5 s: %s", during)
	s.Observed("tor1's kernel sent %s to n2 alone %s after p11 began to terminate", vip,
		s.Observer.RouteVia(vip, left, "n2").Sub(left).Round(100*time.Microsecond))
	report, err := s.NoneLost(r, vip, began)
	s.Observed("%s", report)
	if r.Pods["p11"] == 0 || r.Pods["p21"] == 0 {
		err = errors.Join(err, errors.New("want answers of both p11 and p21"))
	}
	return err
}

// describeSlices returns the content of a Service's EndpointSlices.
func (l cluster) describeSlices(ctx context.Context, service string) (string, error) {
	slices, err := l.Kubernetes.Admin().List(ctx, sliceKind)
	var b strings.Builder
	for _, o := range slices {
		if o.GetLabels()["kubernetes.io/service-name"] != service {
			continue
		}
		fmt.Fprintf(&b, "%s (%s):", o.GetName(), o.GetLabels()["endpointslice.kubernetes.io/managed-by"])
		endpoints, _, _ := unstructured.NestedSlice(o.Object, "endpoints")
		for _, e := range endpoints {
			e := e.(map[string]any)
			pod, _, _ := unstructured.NestedString(e, "targetRef", "name")
			c, _, _ := unstructured.NestedMap(e, "conditions")
			fmt.Fprintf(&b, " %s@%v ready=%v serving=%v terminating=%v", pod, e["nodeName"], c["ready"], c["serving"],
				c["terminating"])
		}
	}
	return b.String(), err
}

// besideKubeProxy checks that kube-proxy serves ClusterIP and NodePort, and Fanfare the
// address, also while kube-proxy is stopped.
func (l cluster) besideKubeProxy(mode kube.ProxyMode) func(context.Context, *lab.StepRun) error {
	return func(ctx context.Context, s *lab.StepRun) (err error) {
		svc := lab.Service{Name: "both", Endpoints: lab.At("p11", "p21")}
		vip, err := s.Serve(ctx, svc, lab.NodeNames...)
		defer s.Drop(ctx, &err, svc.Name, vip)
		if err != nil {
			return err
		}
		clusterIP, nodePort, err := l.ports(ctx, svc.Name)
		if err != nil {
			return err
		}
		for _, node := range lab.NodeNames {
			if err := l.awaitProgrammed(ctx, node, mode, vip, clusterIP); err != nil {
				return err
			}
		}
		s.Observed("the rules of kube-proxy (%s) on all nodes have %s and ClusterIP %s", mode, vip, clusterIP)
		if err := l.askProxy(ctx, s, vip, clusterIP, nodePort); err != nil {
			return err
		}
		if err := s.CheckMasquerade(ctx, netip.AddrPortFrom(vip, 80), "p11", "p21"); err != nil {
			return err
		}
		s.Observed("with kube-proxy every pod would see its node's address under Cluster, so Fanfare served these")
		return l.withoutProxies(ctx, s, mode, svc, vip)
	}
}

// ports returns a Service's ClusterIP and the node port of port 80.
func (l cluster) ports(ctx context.Context, service string) (clusterIP netip.Addr, nodePort uint16, err error) {
	all, err := l.Kubernetes.Admin().List(ctx, serviceKind)
	if err != nil {
		return clusterIP, 0, err
	}
	for _, o := range all {
		if o.GetNamespace() != "shop" || o.GetName() != service {
			continue
		}
		ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP")
		ports, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports")
		number, _, _ := unstructured.NestedInt64(ports[0].(map[string]any), "nodePort")
		clusterIP, err = netip.ParseAddr(ip)
		return clusterIP, uint16(number), err
	}
	return clusterIP, 0, fmt.Errorf("there is no Service %s", service)
}

// awaitProgrammed waits until kube-proxy's rules on a node contain these addresses.
func (l cluster) awaitProgrammed(ctx context.Context, node string, mode kube.ProxyMode, addrs ...netip.Addr) error {
	show := []string{"nft", "list", "table", "ip", "kube-proxy"}
	if mode == kube.IPTables {
		show = []string{"iptables-save", "-t", "nat"}
	}
	return lab.Await(ctx, lab.Settle, "kube-proxy's rules on "+node, func() error {
		rules, err := l.Namespace(node).Run(ctx, show...)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if !strings.Contains(rules, a.String()) {
				return fmt.Errorf("no %s in the rules:\n%s", a, rules)
			}
		}
		return nil
	})
}

// askProxy uses ClusterIP and NodePort, and the address from within the cluster.
func (l cluster) askProxy(ctx context.Context, s *lab.StepRun, vip, clusterIP netip.Addr, nodePort uint16) error {
	n3, p31 := &lab.Client{Namespace: s.Namespace("n3")}, &lab.Client{Namespace: s.Namespace("p31")}
	node, pod := lab.NodeAddr("n3", vip), lab.PodAddr("p31", "IPv4")
	for _, c := range []struct {
		what string
		from *lab.Client
		to   netip.AddrPort
		saw  netip.Addr // what the pod must see
		late bool       // kube-proxy may not have the endpoints yet
	}{
		{"ClusterIP from node n3", n3, netip.AddrPortFrom(clusterIP, 80), node, true},
		{"ClusterIP from pod p31", p31, netip.AddrPortFrom(clusterIP, 80), pod, true},
		{"NodePort of n3 from the client", s.Client, netip.AddrPortFrom(node, nodePort), node, true},
		{"the address from node n3", n3, netip.AddrPortFrom(vip, 80), node, false},
		{"the address from pod p31", p31, netip.AddrPortFrom(vip, 80), pod, false},
	} {
		try := func() error {
			for range 10 {
				a, err := c.from.Get(ctx, netip.AddrPort{}, c.to)
				if err != nil {
					return fmt.Errorf("%s: %w", c.to, err)
				}
				if a.Saw.Addr() != c.saw {
					return fmt.Errorf("%s: %s saw %s: want %s", c.to, a.Pod, a.Saw, c.saw)
				}
			}
			return nil
		}
		err := try()
		if c.late {
			err = lab.Await(ctx, lab.Settle, c.what, try)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		s.Observed("%s, %s: answered, seen as %s", c.what, c.to, c.saw)
	}
	return nil
}

// withoutProxies kills kube-proxy on all nodes. A Service still moves, and a new one is
// created.
func (l cluster) withoutProxies(ctx context.Context, s *lab.StepRun, mode kube.ProxyMode, svc lab.Service,
	vip netip.Addr) (err error) {
	for _, node := range lab.NodeNames {
		if err := l.Proxies[node].Stop(syscall.SIGKILL, 10*time.Second); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, l.StartProxies(context.WithoutCancel(ctx), mode)) }()
	fresh := lab.Service{Name: "fresh", Policy: "Local", Endpoints: lab.At("p21")}
	freshVIP, err := s.Serve(ctx, fresh, "n2")
	defer s.Drop(ctx, &err, fresh.Name, freshVIP)
	if err != nil {
		return err
	}
	moved := time.Now()
	svc.Endpoints = lab.At("p31")
	if err := s.Cluster.Put(svc); err != nil {
		return err
	}
	for _, node := range lab.NodeNames {
		err := lab.Await(ctx, lab.Settle, "new rules on "+node, func() error {
			if s.Observer.RuleSince(node, vip, moved).IsZero() {
				return errors.New("none")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for addr, pod := range map[netip.Addr]string{vip: "p31", freshVIP: "p21"} {
		for range 10 {
			if a, err := s.Client.Get(ctx, netip.AddrPort{}, netip.AddrPortFrom(addr, 80)); err != nil || a.Pod != pod {
				return fmt.Errorf("without kube-proxy, %s: answered by %q (%v): want %s", addr, a.Pod, err, pod)
			}
		}
	}
	s.Action("kube-proxy was killed on all nodes, then the Service moved to p31, and another Service was created")
	s.Observed("both answer from their new pods: %s, %s", vip, freshVIP)
	return nil
}

// withoutTable stops the speaker and removes the table on a node that the router still
// sends packets to. kube-proxy's different answers then prove that Fanfare answered before;
// connections through kube-proxy stay open when the speaker is back.
func (l cluster) withoutTable(ctx context.Context, s *lab.StepRun) (err error) {
	svc := lab.Service{Name: "bare", Endpoints: lab.At("p11")}
	vip, err := s.Serve(ctx, svc, lab.NodeNames...)
	defer s.Drop(ctx, &err, svc.Name, vip)
	if err != nil {
		return err
	}
	route := []string{"ip", "route", "add", vip.String(), "via", lab.NodeAddr("n1", vip).String(), "metric", "1"}
	if _, err := s.Router.Run(ctx, route...); err != nil {
		return err
	}
	defer func() {
		// While this route exists FRR withholds its own route, which must be back before the
		// Service is deleted.
		route[2] = "del"
		ctx := context.WithoutCancel(ctx)
		_, e := s.Router.Run(ctx, route...)
		err = errors.Join(err, e, s.Router.AwaitNextHops(ctx, lab.Settle, vip, lab.NodeNames...))
	}()
	// Through kube-proxy the pod sees the address of the node's interface towards it.
	ours, node := lab.ClientAddr, netip.MustParseAddr("10.244.1.1")
	if err := l.awaitSource(ctx, s, vip, ours); err != nil {
		return err
	}
	if err := s.Speaker("n1").Terminate(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.StartSpeakers(context.WithoutCancel(ctx), "n1")) }()
	if _, err := s.Namespace("n1").Run(ctx, s.Binary, "cleanup", "--run-dir", s.Speaker("n1").RunDir); err != nil {
		return err
	}
	if err := l.awaitSource(ctx, s, vip, node); err != nil {
		return fmt.Errorf("without the table: %w", err)
	}
	s.Action("the speaker of n1, which gets all packets, was stopped and its table removed by `fanfare cleanup`")
	s.Observed("kube-proxy answers instead, and p11 sees %s instead of the client", node)
	flows, err := s.Client.OpenFlows(ctx, 5, netip.AddrPortFrom(vip, 7))
	if err != nil {
		return err
	}
	defer flows.Close()
	if err := s.StartSpeakers(ctx, "n1"); err != nil {
		return err
	}
	if err := l.awaitSource(ctx, s, vip, ours); err != nil {
		return fmt.Errorf("with the speaker again: %w", err)
	}
	if err := flows.AwaitLines(ctx, 20); err != nil {
		return err
	}
	for _, f := range flows.All {
		if err := f.Err(); err != nil {
			return fmt.Errorf("a connection through kube-proxy, after the speaker's return: %w", err)
		}
	}
	s.Observed("with the speaker again p11 sees the client; %d connections through kube-proxy stayed open",
		len(flows.All))
	return nil
}

// awaitSource waits until p11 sees the given client address on new connections, ten times
// in a row.
func (l cluster) awaitSource(ctx context.Context, s *lab.StepRun, vip, want netip.Addr) error {
	return lab.Await(ctx, lab.Settle, "p11 to see "+want.String(), func() error {
		for range 10 {
			a, err := s.Client.Get(ctx, netip.AddrPort{}, netip.AddrPortFrom(vip, 80))
			if err != nil {
				return err
			}
			if a.Saw.Addr() != want {
				return fmt.Errorf("it saw %s", a.Saw)
			}
		}
		return nil
	})
}

// outageLength is how long the API server is down: longer than the 15 s for which a
// leader's Lease counts.
const outageLength = 20 * time.Second

// outage kills the API server for a while, and restarts a speaker meanwhile.
func (l cluster) outage(ctx context.Context, s *lab.StepRun) (err error) {
	svc := lab.Service{Name: "steady", Policy: "Local", Endpoints: lab.At("p11")}
	var away, ended, started time.Time
	var back, outage, recovered time.Duration
	vip, began, r, err := s.UnderLoad(ctx, svc, outageLength+2*time.Second, func(netip.Addr) []lab.Moment {
		return []lab.Moment{
			{At: time.Second, Do: func() error { away = time.Now(); l.Kubernetes.APIServer.Kill(); return nil }},
			{At: 10 * time.Second, Do: s.Speaker("n1").Kill},
			{At: 11 * time.Second, Do: func() error {
				started = time.Now()
				err := s.StartSpeakers(ctx, "n1")
				back = time.Since(started)
				return err
			}},
			{At: outageLength + time.Second, Do: func() error {
				ended = time.Now()
				err := l.Kubernetes.StartAPIServer(ctx)
				outage = time.Since(away)
				if err == nil {
					err = l.awaitAPIServerSeen(ctx, s)
				}
				recovered = time.Since(away) - outage
				return err
			}},
		}
	})
	if ended.IsZero() { // Another failure came first; later steps need the API server.
		err = errors.Join(err, l.Kubernetes.StartAPIServer(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return errors.Join(err, s.StartSpeakers(context.WithoutCancel(ctx), "n1"))
	}
	changes := len(s.Observer.RouteChanges(vip, away, ended))
	s.Action("%d new connections a second, all through n1; at 1 s the API server got SIGKILL, at 10 s the "+
		"speaker of n1, which was\n"+
		"started at 11 s; at %s the API server was started", lab.Rate, ended.Sub(began).Round(time.Second))
	s.Observed("the API server was down for %.1f s; the session of n1 was up %.1f s after the speaker's start, "+
		"from its snapshot;\n"+
		"changes of the route in tor1's kernel: %d; all speakers used the API server again after %.1f s",
		outage.Seconds(), back.Seconds(), changes, recovered.Seconds())
	if changes > 0 {
		err = fmt.Errorf("the route changed %d times: want it untouched", changes)
	}
	report, lost := s.NoneLost(r, vip, began)
	s.Observed("%s", report)
	return errors.Join(err, lost, l.afterOutage(ctx, s))
}

// awaitAPIServerSeen waits until no speaker reports a problem with the API server. Their
// retries slow down to one in ten seconds.
func (l cluster) awaitAPIServerSeen(ctx context.Context, s *lab.StepRun) error {
	return lab.Await(ctx, lab.Settle, "speakers to use the API server again", func() error {
		for _, node := range lab.NodeNames {
			st, err := s.Speaker(node).Status(ctx)
			if err != nil {
				return err
			}
			for _, p := range st.Problems {
				if p.Object == "API server" {
					return fmt.Errorf("%s reports: %s", node, p.Message)
				}
			}
		}
		return nil
	})
}

// afterOutage checks that changes take effect again.
func (l cluster) afterOutage(ctx context.Context, s *lab.StepRun) (err error) {
	for _, c := range l.Controllers {
		if !c.Alive() {
			return errors.New("a controller has ended")
		}
	}
	began := time.Now()
	svc := lab.Service{
		Name: "afterwards", Policy: "Local", Ask: []netip.Addr{netip.MustParseAddr("192.0.2.70")},
		Endpoints: lab.At("p21"),
	}
	defer s.Drop(ctx, &err, svc.Name, svc.Ask[0])
	if err := s.Cluster.Put(svc); err != nil {
		return err
	}
	// First a controller is elected, and informers retry with backoff.
	if err := s.Router.AwaitNextHops(ctx, lab.Settle, svc.Ask[0], "n2"); err != nil {
		return err
	}
	a, err := s.Client.Get(ctx, netip.AddrPort{}, netip.AddrPortFrom(svc.Ask[0], 80))
	s.Observed("afterwards a new Service had an address and a route %.1f s after it was created, "+
		"and was answered by %s", time.Since(began).Seconds(), a.Pod)
	return err
}
