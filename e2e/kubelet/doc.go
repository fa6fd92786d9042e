// Package kubelet runs Fanfare as users do: as pods, on real kubelets.
//
// Two nodes of the laboratory (e2e/lab) become machines of their own, with
// containerd, runc, CNI plug-ins, a kubelet and kube-proxy; the control plane of
// e2e/kube schedules pods on them; kubectl applies what is in manifests as it is.
// The tests then do what operators do, under a steady load of new connections
// that a client opens behind a real router: upgrade Fanfare, upgrade a workload,
// drain a node, lose one.
//
// There is nothing to import: it is tests.
package kubelet
