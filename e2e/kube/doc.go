// Package kube runs a real Kubernetes control plane for tests: etcd, kube-apiserver and
// kube-controller-manager as processes on this machine, in a directory that is removed with
// them. It needs no container, image or cluster.
//
// tools/build.sh builds the programs from their modules, once per version. With the flag -oldest,
// tests run those of oldest, the oldest Kubernetes that works with Fanfare.
//
// Nodes and pods are objects that the tests write: no kubelet runs unless a test starts
// one.
//
// A [Lab] is the laboratory of e2e/lab with such a control plane, and with kube-proxy
// beside the speakers.
//
// controlplane.go starts etcd and the Kubernetes programs, as process.go runs them, with the certificates
// of pki.go; kubelets.go has what changes if real kubelets join, and tools.go builds the programs.
// client.go writes and reads objects, and etcd.go writes them past the API server. lab.go connects a control
// plane to the laboratory, and kubeproxy.go runs kube-proxy on its nodes.
package kube
