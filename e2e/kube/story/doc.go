// Package story plays the laboratory's story once more, against a real control plane and
// beside kube-proxy. It has a package of its own since it has the machine to itself for
// minutes: go test gives a package ten of them.
package story
