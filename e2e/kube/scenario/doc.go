// Package scenario runs the laboratory's scenario once more, against a real control plane and
// beside kube-proxy. It has a package of its own since it has the machine to itself for
// minutes: go test gives a package ten of them.
package scenario
