// Package kubelet tests Fanfare as pods on real kubelets.
//
// Two nodes of the laboratory (e2e/lab) get their own containerd, runc, CNI plug-ins, kubelet and
// kube-proxy. The control plane of e2e/kube schedules pods on them, and kubectl applies manifests/
// unchanged. The tests then do what operators do, under a steady load of new connections through a
// real router: they upgrade Fanfare and a workload, drain a node, and fail one.
//
// The package contains only tests. Read lifecycle_test.go first; l2_test.go, helm_test.go,
// uninstall_test.go, recipe_test.go (the recipes of docs/tasks) and metallb_test.go with
// metallb_move_test.go are the others; conformance_test.go runs Kubernetes' own (e2e/conformance), with an
// image of agnhost_test.go. What they share: main_test.go (what the host needs),
// cluster_test.go and kubenode_test.go with kubenode.sh (the nodes), image_test.go (images without
// a registry), install_test.go (Fanfare and the workload), load_test.go (the connections).
package kubelet
