package speaker

import (
	"errors"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// Two Services with a healthCheckNodePort, of which kube-proxy serves one.
const healthYAML = `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: L2, addresses: [192.0.2.0/24, "2001:db8::/64"]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: a-ours, labels: {service.kubernetes.io/service-proxy-name: fanfare}}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  healthCheckNodePort: 32001
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  ports: [{name: http, port: 80}, {name: https, port: 443}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {ip: "2001:db8::1"}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: a-4, labels: {kubernetes.io/service-name: a-ours}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: https, port: 8443}]
endpoints:
- {addresses: [10.244.1.1], nodeName: n1, conditions: {ready: true}}
- {addresses: [10.244.1.2], nodeName: n1, conditions: {ready: true}}
- {addresses: [10.244.1.3], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.244.2.1], nodeName: n2, conditions: {ready: true}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: a-6, labels: {kubernetes.io/service-name: a-ours}}
addressType: IPv6
ports: [{name: http, port: 8080}, {name: https, port: 8443}]
endpoints:
- {addresses: ["fd00::3"], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: b-kube-proxys}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32002, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.2}]}}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: c-cluster, labels: {service.kubernetes.io/service-proxy-name: fanfare}}
spec: {type: LoadBalancer, externalTrafficPolicy: Cluster, healthCheckNodePort: 32003, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.3}]}}
---
apiVersion: v1
kind: Service
metadata:
  namespace: shop
  name: d-waits # for an address of a pool that is to come
  labels: {service.kubernetes.io/service-proxy-name: fanfare}
  annotations: {fanfare.io/load-balancer-ips: 198.18.0.1}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32004, clusterIPs: [10.96.0.4], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: d-4, labels: {kubernetes.io/service-name: d-waits}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.1], nodeName: n1, conditions: {ready: true}}]
`

// The count is of ready pods on this node, not of their ports; who serves as the last
// one while it terminates does not count, as with kube-proxy. As with kube-proxy, a
// Service without an address counts like any other.
func TestChecks(t *testing.T) {
	snap := snapshotOf(t, []byte(healthYAML))
	ours := []healthcheck.Check{
		{Namespace: "shop", Name: "a-ours", Port: 32001, Family: healthcheck.IPv4, Endpoints: 2},
		{Namespace: "shop", Name: "a-ours", Port: 32001, Family: healthcheck.IPv6, Endpoints: 0},
		{Namespace: "shop", Name: "d-waits", Port: 32004, Family: healthcheck.IPv4, Endpoints: 1},
	}
	all := slices.Insert(slices.Clone(ours), 2,
		healthcheck.Check{Namespace: "shop", Name: "b-kube-proxys", Port: 32002, Family: healthcheck.IPv4})
	for _, row := range []struct {
		which HealthChecks
		want  []healthcheck.Check
	}{{HealthChecksLabelled, ours}, {HealthChecksAll, all}, {HealthChecksNone, nil}} {
		if got := Decide(Config{Node: "n1", HealthChecks: row.which}, snap).Checks; !reflect.DeepEqual(got, row.want) {
			t.Errorf("%d: %v, want %v", row.which, got, row.want)
		}
	}
}

// A port that somebody else has is said of its Service, with the address of its
// family if there is one, and needs attention.
func TestUnansweredIsSaid(t *testing.T) {
	d := Decide(Config{Node: "n1"}, snapshotOf(t, []byte(healthYAML)))
	p := &published{desired: d, programmed: true, unanswered: []healthcheck.Failure{{Check: d.Checks[0], Err: errors.New("taken")}, {Check: d.Checks[2], Err: errors.New("taken")}}}
	st := Status{Waiting: p.unansweredNowhere()}
	var said []string
	for _, a := range d.Addresses {
		st.Addresses = append(st.Addresses, p.address(a, bgp.Status{}))
		for _, r := range st.Addresses[len(st.Addresses)-1].Reasons {
			if r.Code == cluster.HealthPortTaken {
				said = append(said, r.Service+" "+a.Addr.String()+": "+r.Message)
			}
		}
	}
	for _, r := range st.Waiting {
		said = append(said, r.Service+": "+r.Message)
	}
	want := []string{
		"shop/a-ours 192.0.2.1: healthCheckNodePort 32001 over IPv4 is not answered, and tried again: taken",
		"shop/d-waits: healthCheckNodePort 32004 over IPv4 is not answered, and tried again: taken",
	}
	if !slices.Equal(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
	attention := strings.Join(st.Attention(time.Now()), "\n")
	for _, port := range []string{"32001", "32004"} {
		if strings.Count(attention, port) != 1 {
			t.Errorf("%s is not once in\n%s", port, attention)
		}
	}
}

// A port that somebody else has is tried again, and answered when it is free.
func TestHealthPortIsTriedAgain(t *testing.T) { nstest.Run(t, healthPortIsTriedAgain) }

func healthPortIsTriedAgain(t *testing.T) {
	s := quietSpeaker(t, nil)
	s.published.Store(&published{ready: true})
	s.health = healthcheck.New(func() bool { return s.published.Load().upToDate() }, s.Log)
	defer s.health.Close()
	s.retry = backoff.NewExponentialBackOff()
	taken, err := net.Listen("tcp4", ":32001")
	if err != nil {
		t.Fatal(err)
	}
	d := Decide(Config{Node: "n1"}, snapshotOf(t, []byte(healthYAML)))
	s.answer(t.Context(), d)
	if len(s.unanswered) != 1 || s.unanswered[0].Family != healthcheck.IPv4 {
		t.Fatalf("unanswered: %v", s.unanswered)
	}
	now := time.Now()
	if at := s.wake(now, nil); !at.Before(s.full) || at.After(now.Add(time.Minute)) {
		t.Errorf("tried again %s from now", at.Sub(now))
	}
	taken.Close()
	s.answer(t.Context(), d)
	if len(s.unanswered) != 0 {
		t.Fatalf("unanswered: %v", s.unanswered)
	}
	if at := s.wake(now, nil); at != s.full {
		t.Errorf("tried again %s from now although nothing is left to try", at.Sub(now))
	}
	status := func(addr string) int {
		t.Helper()
		resp, err := http.Get("http://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if four, six := status("127.0.0.1:32001"), status("[::1]:32001"); four != 200 || six != 503 {
		t.Errorf("%d over IPv4 and %d over IPv6, want 200 and 503", four, six)
	}
	s.published.Store(&published{ready: true, behind: now.Add(-2 * lateAfter)})
	if four := status("127.0.0.1:32001"); four != 503 {
		t.Errorf("%d although the kernel has not taken a change for long, want 503", four)
	}
}
