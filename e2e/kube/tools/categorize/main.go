// Command categorize runs kube-proxy's own code that selects a Service's endpoints for a
// node, on random cases, and writes a line with the answer for each. Fanfare's speaker must
// select the same. After an update of Kubernetes, run "go run ./categorize" to write
// internal/plan/testdata/kube-proxy.txt again.
package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/proxy"
)

const (
	cases = 400
	node  = "n1"
)

func main() {
	fmt.Println("# Written by e2e/kube/tools/categorize with kube-proxy's code. Endpoints are conditions")
	fmt.Println("# (r ready, s serving, t terminating) @ node / zone hints / node hints; answers are their indexes.")
	r := rand.New(rand.NewPCG(1669, 2433))
	for range cases {
		local, zone, all := r.IntN(2) == 0, pick(r, "", "a", "a", "a", "b"), endpoints(r)
		near, here, _, reachable := proxy.CategorizeEndpoints(all, service{local: local}, node,
			map[string]string{"topology.kubernetes.io/zone": zone})
		fmt.Printf("local=%t zone=%s endpoints=%s -> cluster=%s local=%s any=%t\n",
			local, zone, strings.Join(words(all), ","), indexes(all, near), indexes(all, here), reachable)
	}
}

// endpoints returns up to five endpoints. Most Services have hints of one kind, as the
// controller writes them.
func endpoints(r *rand.Rand) (all []proxy.Endpoint) {
	zones, nodes := r.IntN(2) == 0, r.IntN(3) == 0
	for i := range r.IntN(6) {
		e := endpoint{name: fmt.Sprint(i), node: pick(r, "n1", "n1", "n2", "n3", "")}
		switch r.IntN(6) {
		case 0:
			e.serving, e.terminating = true, true
		case 1:
			e.terminating = true
		case 2:
		default:
			e.ready, e.serving = true, true
		}
		if zones && r.IntN(8) > 0 {
			e.zones = hint(r, "a", "b", "c")
		}
		if nodes && r.IntN(8) > 0 {
			e.nodes = hint(r, "n1", "n2", "n3")
		}
		all = append(all, e)
	}
	return all
}

func hint(r *rand.Rand, names ...string) sets.Set[string] {
	s := sets.New(pick(r, names...))
	if r.IntN(4) == 0 {
		s.Insert(pick(r, names...))
	}
	return s
}

func pick(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

func words(all []proxy.Endpoint) (out []string) {
	for _, e := range all {
		conditions := ""
		for letter, is := range map[string]bool{"r": e.IsReady(), "s": e.IsServing(), "t": e.IsTerminating()} {
			if is {
				conditions += letter
			}
		}
		letters := strings.Split(conditions, "")
		slices.Sort(letters)
		out = append(out, fmt.Sprintf("%s@%s/%s/%s", strings.Join(letters, ""), e.(endpoint).node,
			strings.Join(sets.List(e.ZoneHints()), "+"), strings.Join(sets.List(e.NodeHints()), "+")))
	}
	return out
}

func indexes(all, some []proxy.Endpoint) string {
	var out []string
	for i := range all {
		if slices.ContainsFunc(some, func(e proxy.Endpoint) bool { return e.String() == all[i].String() }) {
			out = append(out, fmt.Sprint(i))
		}
	}
	return strings.Join(out, "+")
}

// A service is one port of a LoadBalancer Service.
type service struct {
	proxy.ServicePort // nil: nothing else is used
	local             bool
}

func (s service) String() string             { return "a" }
func (s service) UsesClusterEndpoints() bool { return true }
func (s service) UsesLocalEndpoints() bool   { return s.local }

type endpoint struct {
	proxy.Endpoint              // nil: nothing else is used
	name, node                  string
	ready, serving, terminating bool
	zones, nodes                sets.Set[string]
}

func (e endpoint) String() string              { return e.name }
func (e endpoint) IsLocal() bool               { return e.node == node }
func (e endpoint) IsReady() bool               { return e.ready }
func (e endpoint) IsServing() bool             { return e.serving }
func (e endpoint) IsTerminating() bool         { return e.terminating }
func (e endpoint) ZoneHints() sets.Set[string] { return e.zones }
func (e endpoint) NodeHints() sets.Set[string] { return e.nodes }
