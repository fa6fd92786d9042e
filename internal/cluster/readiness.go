package cluster

import "slices"

// GetsFlows reports whether an endpoint gets new flows.
func (e *Endpoint) GetsFlows(notReady bool) bool { return e.Ready || notReady }

// UsableEndpoints returns the ready endpoints or, without any, terminating endpoints that still
// serve (KEP-1669). With notReady, all are ready.
func UsableEndpoints(all []Endpoint, notReady bool) []Endpoint {
	if use := FilterEndpoints(all, func(e *Endpoint) bool { return e.GetsFlows(notReady) }); len(use) > 0 {
		return use
	}
	return FilterEndpoints(all, func(e *Endpoint) bool { return e.Serving && e.Terminating })
}

// UsableOn returns the usable endpoints on the nodes that respond, and true. Without any, it returns those on all
// nodes: one that does not respond may be alive, and clients lose nothing.
func UsableOn(responds func(node string) bool, all []Endpoint, notReady bool) (use []Endpoint, respond bool) {
	there := FilterEndpoints(all, func(e *Endpoint) bool { return responds(e.Node) })
	if use = UsableEndpoints(there, notReady); len(use) > 0 {
		return use, true
	}
	return UsableEndpoints(all, notReady), false
}

// FilterEndpoints returns the wanted endpoints: list itself if all are wanted, as nearly always.
func FilterEndpoints(list []Endpoint, wanted func(*Endpoint) bool) []Endpoint {
	i := 0
	for i < len(list) && wanted(&list[i]) {
		i++
	}
	if i == len(list) {
		return list
	}
	some := slices.Clone(list[:i])
	for i++; i < len(list); i++ {
		if wanted(&list[i]) {
			some = append(some, list[i])
		}
	}
	return some
}
