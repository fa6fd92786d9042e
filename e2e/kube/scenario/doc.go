// Package scenario repeats the laboratory's scenario with a real control plane and with
// kube-proxy. It is its own package because it takes minutes, and go test gives a package
// ten.
package scenario
