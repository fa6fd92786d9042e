package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// Steps that differ with an API server.

// A latency holds the times from the creation of a Service to each effect.
type latency struct{ created, status, rules, update, route, answer time.Duration }

// answerBound is far above the measured times: benchmarks measure the speed on an idle
// machine.
const answerBound = 5 * time.Second

func (l cluster) firstAnswer(ctx context.Context, s *lab.StepRun) error {
	const repeats = 15
	var all []latency
	for i := range repeats {
		one, err := l.measureFirstAnswer(ctx, s, fmt.Sprintf("fresh-%d", i),
			netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)}))
		if err != nil {
			return err
		}
		all = append(all, one)
	}
	median := func(of func(latency) time.Duration) time.Duration {
		var d []time.Duration
		for _, one := range all {
			d = append(d, of(one))
		}
		slices.Sort(d)
		return d[len(d)/2].Round(100 * time.Microsecond)
	}
	answer := median(func(l latency) time.Duration { return l.answer })
	s.Action("%d times: a Service with an existing EndpointSlice was created, while the client tried "+
		"its address every 2 ms", repeats)
	s.Observed("medians, from the moment before the call: it returned after %s, the status had the address after %s, "+
		"n1's kernel the rules\n"+
		"after %s, tor1 the BGP UPDATE after %s and the route in its kernel after %s",
		median(func(l latency) time.Duration { return l.created }),
		median(func(l latency) time.Duration { return l.status }),
		median(func(l latency) time.Duration { return l.rules }),
		median(func(l latency) time.Duration { return l.update }),
		median(func(l latency) time.Duration { return l.route }))
	s.Observed("first answer after %s, which is %s after the call returned; %s of that passed inside FRR",
		answer, median(func(l latency) time.Duration { return l.answer - l.created }),
		median(func(l latency) time.Duration { return l.route - l.update }))
	if answer > answerBound {
		return fmt.Errorf("median %s: want less than %s", answer, answerBound)
	}
	return nil
}

// measureFirstAnswer requests an address, so that the client knows it from the start.
func (l cluster) measureFirstAnswer(ctx context.Context, s *lab.StepRun, name string,
	vip netip.Addr) (one latency, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*lab.Settle)
	defer cancel()
	defer s.Drop(ctx, &err, name+"-slice")
	if err := s.Cluster.PutText(name+"-slice", sliceOf(name, "10.244.1.11", "n1")); err != nil {
		return one, err
	}
	assigned, err := l.watchAddress(ctx, name)
	if err != nil {
		return one, err
	}
	answered := make(chan error, 1)
	var at time.Time
	go func() {
		var err error
		at, err = s.Client.FirstAnswer(ctx, netip.AddrPortFrom(vip, 80))
		answered <- err
	}()
	began := time.Now()
	defer s.Drop(ctx, &err, name, vip)
	if err := s.Cluster.PutText(name, localService(name, "fanfare.io/load-balancer-ips: "+vip.String(), "null")); err !=
		nil {
		return one, err
	}
	one.created = time.Since(began)
	if err := <-answered; err != nil {
		return one, err
	}
	status, ok := <-assigned
	if !ok {
		return one, errors.New("the status never got an address")
	}
	one.status, one.answer = status.Sub(began), at.Sub(began)
	// The observer may lag behind.
	return one, lab.Await(ctx, lab.Settle, "the observer", func() error {
		rules, update, route := s.Observer.RuleSince("n1", vip, began), s.Observer.Announced("n1", vip, began),
			s.Observer.RouteVia(vip, began, "n1")
		if rules.IsZero() || update.IsZero() || route.IsZero() {
			return fmt.Errorf("rules %v, UPDATE %v, route %v", rules, update, route)
		}
		one.rules, one.update, one.route = rules.Sub(began), update.Sub(began), route.Sub(began)
		return nil
	})
}

// watchAddress sends the time at which a Service of namespace shop first has an address.
// The channel is closed if the watch ends before.
func (l cluster) watchAddress(ctx context.Context, name string) (<-chan time.Time, error) {
	w, err := l.Kubernetes.Admin().Watch(ctx, serviceKind, "shop", name)
	if err != nil {
		return nil, fmt.Errorf("watch service %s: %w", name, err)
	}
	seen := make(chan time.Time, 1)
	go func() {
		defer close(seen)
		defer w.Stop()
		for e := range w.ResultChan() {
			o, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			if addresses, _, _ := unstructured.NestedSlice(o.Object, "status", "loadBalancer",
				"ingress"); len(addresses) > 0 {
				seen <- time.Now()
				return
			}
		}
	}()
	return seen, nil
}

// localService returns a LoadBalancer Service of policy Local.
func localService(name, annotation, selector string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: %s, annotations: {%s}}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  selector: %s
  ports: [{name: web, port: 80, targetPort: %d}]
`, name, annotation, selector, lab.WebPort)
}

func sliceOf(service, addr, node string) string {
	return fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: web, port: %[4]d, protocol: TCP}]
endpoints: [{addresses: [%[2]s], nodeName: %[3]s, conditions: {ready: true}}]
`, service, addr, node, lab.WebPort)
}

// refused are objects that the API server refuses, and its message.
var refused = []struct{ object, want string }{
	{"apiVersion: fanfare.io/v1alpha1\nkind: BGPPeer\nmetadata: {name: tor2}\nspec: {peerASN: 64496, myASN: 64497}\n",
		"name the router by one of"},
	{"apiVersion: fanfare.io/v1alpha1\nkind: AddressPool\nmetadata: {name: office}\nspec: {announce: BGP, " +
		"addresses: [192.0.2.130/25]}\n", "a CIDR must begin at its network's first address"},
}

// overlapping is an error that only a comparison of objects finds.
const overlapping = `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: office}
spec: {announce: BGP, addresses: [192.0.2.128/25]}
`

func requestingService(name, addr, pod string) lab.Service {
	return lab.Service{Name: name, Ask: []netip.Addr{netip.MustParseAddr(addr)}, Endpoints: lab.At(pod)}
}

func (l cluster) badInput(ctx context.Context, s *lab.StepRun) (err error) {
	good := lab.Service{Name: "good", Policy: "Local", Endpoints: lab.At("p11")}
	vip, err := s.Serve(ctx, good, "n1")
	defer s.Drop(ctx, &err, good.Name, vip)
	if err != nil {
		return err
	}
	for _, r := range refused {
		err := l.Kubernetes.Admin().Create(ctx, r.object)
		if err == nil || !strings.Contains(err.Error(), r.want) {
			return fmt.Errorf("refused with %v: want %q", err, r.want)
		}
		s.Observed("the API server: %v", err)
	}
	defer s.Drop(ctx, &err, "office")
	if err := s.Cluster.PutText("office", overlapping); err != nil {
		return err
	}
	for _, svc := range []lab.Service{requestingService("outside", "198.18.0.1", "p11"),
		requestingService("twin-a", "192.0.2.66", "p11"), requestingService("twin-b", "192.0.2.66", "p21")} {
		defer s.Drop(ctx, &err, svc.Name)
		if err := s.Cluster.Put(svc); err != nil {
			return err
		}
		if svc.Name == "twin-a" { // The first Service gets the address.
			if _, err := s.AwaitAddress(ctx, "shop/twin-a", false); err != nil {
				return err
			}
		}
	}
	if err := l.awaitReported(ctx, s); err != nil {
		return err
	}
	return s.CheckValidServices(ctx, vip)
}

// awaitReported waits until errors are in a node's status, in Events of the Services and in
// the condition of the pool.
func (l cluster) awaitReported(ctx context.Context, s *lab.StepRun) error {
	outside, twin := []string{"shop/outside", "198.18.0.1"}, []string{"shop/twin-b", "192.0.2.66", "shop/twin-a"}
	lines, err := s.AwaitStatusLines(ctx, [][]string{{"AddressPool office", "192.0.2.128", "lan"}, outside, twin})
	if err != nil {
		return err
	}
	s.Action("a pool that overlaps another, a Service that requests an address outside every pool, two Services " +
		"that request one address")
	s.Observed("`fanfare status` on n1 shows:\n%s", strings.Join(lines, "\n"))
	lines, err = l.awaitLines(ctx, [][]string{{"Event of outside", "198.18.0.1"},
		{"Event of twin-b", "192.0.2.66", "shop/twin-a"}, {"AddressPool office", "False", "lan"}})
	s.Observed("the API server has:\n%s", strings.Join(lines, "\n"))
	return err
}

// awaitLines waits for a line with all words for each error, and returns these lines.
func (l cluster) awaitLines(ctx context.Context, want [][]string) (lines []string, err error) {
	err = lab.Await(ctx, lab.Settle, "Events and conditions", func() error {
		eventsAndConditions, err := l.eventsAndConditions(ctx)
		if err != nil {
			return err
		}
		lines = nil
		for _, words := range want {
			i := slices.IndexFunc(eventsAndConditions, func(line string) bool {
				return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) })
			})
			if i < 0 {
				return fmt.Errorf("no line has all of %q:\n%s", words, strings.Join(eventsAndConditions, "\n"))
			}
			lines = append(lines, eventsAndConditions[i])
		}
		return nil
	})
	return lines, err
}

// eventsAndConditions returns Events of Services and conditions of pools, a line each.
func (l cluster) eventsAndConditions(ctx context.Context) (lines []string, err error) {
	events, err := l.Kubernetes.Admin().List(ctx,
		schema.GroupVersionKind{Group: "events.k8s.io", Version: "v1", Kind: "Event"})
	if err != nil {
		return nil, err
	}
	for _, e := range events {
		about, _, _ := unstructured.NestedString(e.Object, "regarding", "name")
		lines = append(lines, fmt.Sprintf("Event of %s: %v %v", about, e.Object["reason"], e.Object["note"]))
	}
	pools, err := l.Kubernetes.Admin().List(ctx, v1alpha1.GroupVersion.WithKind("AddressPool"))
	for _, p := range pools {
		conditions, _, _ := unstructured.NestedSlice(p.Object, "status", "conditions")
		for _, c := range conditions {
			c := c.(map[string]any)
			lines = append(lines, fmt.Sprintf("AddressPool %s: %v %v: %v", p.GetName(), c["type"], c["status"],
				c["message"]))
		}
	}
	return lines, err
}
