package scale

import "math"

// The cluster that the model predicts. It has as many Services for each node, and endpoints for each Service, as
// the measured ones: 10,000 Services and 50,000 endpoints.
const modelNodes = 1000

// A load is what one kind of client costs in one phase.
type load struct{ Requests, Writes, Events, MB, CPU float64 }

// loadOf is the load of a phase.
func loadOf(p phase) load {
	return load{float64(p.Count.Requests()), float64(p.Count.Writes), p.Sent, float64(p.Count.Received) / 1e6,
		p.CPU.Seconds()}
}

// combine applies f to each number of two loads.
func combine(a, b load, f func(a, b float64) float64) load {
	return load{f(a.Requests, b.Requests), f(a.Writes, b.Writes), f(a.Events, b.Events), f(a.MB, b.MB), f(a.CPU, b.CPU)}
}

// predict predicts the load of a phase in a cluster of n nodes from two measured ones, of which large has more nodes
// than small. Without clients, the phase costs the base.
//
// What one client adds grows linearly with the cluster, because it receives all objects and learns what happens to all
// nodes; so all clients add a term in n and one in n². Two sizes determine both.
func predict(n, small, large int, base, measured [2]load) load {
	a, b := added(measured[0], base[0], small), added(measured[1], base[1], large)
	line := func(a, b float64) float64 { return extend(n, small, large, a, b) }
	client, without := combine(a, b, line), combine(base[0], base[1], line)
	return combine(client, without, func(client, without float64) float64 { return float64(n)*client + without })
}

// added is what each of n clients adds to the base.
func added(measured, base load, n int) load {
	return combine(measured, base, func(measured, base float64) float64 { return max(0, measured-base) / float64(n) })
}

// extend continues the line through the values a at small and b at large. It never falls: what is less in the larger
// cluster is the same in the largest.
func extend(n, small, large int, a, b float64) float64 {
	return b + max(0, b-a)*float64(n-large)/float64(large-small)
}

// repeats is how closely a measurement of CPU time is assumed to repeat itself.
const repeats = 0.05

// Model predicts all phases that were measured with both kinds of clients at both sizes. It is empty if the larger
// cluster has less than twice the nodes: from sizes so close to each other, it would predict mostly noise.
func (r report) Model() (all []comparison) {
	if r.Large.Nodes < 2*r.Small.Nodes {
		return nil
	}
	for _, p := range r.phases(r.Large, speakers) {
		s, ok1 := r.predicted(speakers, p.Name)
		k, ok2 := r.predicted(proxies, p.Name)
		if ok1 && ok2 {
			all = append(all, comparison{p.Name, s, k, r.margin(speakers, p.Name), r.margin(proxies, p.Name)})
		}
	}
	return all
}

// predicted predicts a phase with one kind of clients; ok is false if it was not measured at both sizes.
func (r report) predicted(k kind, name string) (l load, ok bool) {
	var base, measured [2]load
	for i, s := range []size{r.Small, r.Large} {
		p, ok := r.find(s, k, name)
		if !ok {
			return load{}, false
		}
		without, _ := r.find(s, none, name) // Without clients some phases have no load, and are not measured.
		base[i], measured[i] = loadOf(without), loadOf(p)
	}
	return predict(modelNodes, r.Small.Nodes, r.Large.Nodes, base, measured), true
}

// margin is the error of a predicted CPU time that a measurement which is wrong by repeats would make, in seconds.
func (r report) margin(k kind, name string) float64 {
	p, _ := r.find(r.Large, k, name)
	return repeats * p.CPU.Seconds() * r.Magnified()
}

// Magnified is how many times an error of a measurement at the larger size counts in the model.
func (r report) Magnified() float64 {
	n, small, large := float64(modelNodes), float64(r.Small.Nodes), float64(r.Large.Nodes)
	return math.Round(n / large * (n - small) / (large - small))
}
