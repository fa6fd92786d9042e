// Package kube runs a real control plane of Kubernetes for tests: etcd,
// kube-apiserver and kube-controller-manager, as processes on this machine, in a
// directory that goes when they do. No container, no image, no cluster.
//
// The programs are built from their modules by tools/build.sh, once per version.
//
// Nodes and pods are objects that the tests write: no kubelet runs unless a test
// starts one.
//
// A [Lab] is the laboratory of e2e/lab with such a control plane, and with
// kube-proxy beside the speakers.
package kube
