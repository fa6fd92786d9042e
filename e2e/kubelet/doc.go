// Package kubelet tests Fanfare as pods on real kubelets.
//
// Two nodes of the laboratory (e2e/lab) get their own containerd, runc,
// CNI plug-ins, kubelet and kube-proxy. The control plane of e2e/kube schedules pods on
// them, and kubectl applies manifests/ unchanged. The tests then do what operators do,
// under a steady load of new connections through a real router: they upgrade Fanfare and a
// workload, drain a node, and fail one.
//
// The package contains only tests.
package kubelet
