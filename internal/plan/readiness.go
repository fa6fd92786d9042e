package plan

import (
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// ready reports whether an endpoint gets new flows.
func ready(e *cluster.Endpoint, notReady bool) bool { return e.Ready || notReady }

// usable returns the ready endpoints or, without any, terminating endpoints that still serve
// (KEP-1669).
func usable(all []cluster.Endpoint, notReady bool) []cluster.Endpoint {
	if use := filter(all, func(e *cluster.Endpoint) bool { return ready(e, notReady) }); len(use) > 0 {
		return use
	}
	return filter(all, func(e *cluster.Endpoint) bool { return e.Serving && e.Terminating })
}

// filter returns the wanted endpoints: list itself if all are wanted, as nearly always.
func filter(list []cluster.Endpoint, wanted func(*cluster.Endpoint) bool) []cluster.Endpoint {
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

// join joins one list of all ports. With one port, as nearly always, it does not copy.
func (e endpoints) join(list func(portEndpoints) []cluster.Endpoint) (all []cluster.Endpoint) {
	if len(e) == 1 {
		return list(e[0])
	}
	for _, p := range e {
		all = append(all, list(p)...)
	}
	return all
}
