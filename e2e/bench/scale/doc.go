// Package scale measures what many nodes cost the API server: hollow speakers, and beside them as many
// hollow kube-proxies.
//
// A hollow speaker (speaker.go) is all of a speaker but its kernel, BGP and ARP: the watches, the
// decisions, SpeakerStatus, Leases, and gossip on a loopback address. A hollow kube-proxy (proxy.go)
// has the informers of kube-proxy and its first Event. All run in this process; etcd, kube-apiserver and
// the controller are real.
//
// model.go predicts from two measured sizes what a larger cluster costs.
//
// Read bench.go first, then phases.go.
package scale
