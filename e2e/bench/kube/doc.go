// Package kube measures Fanfare and kube-proxy side by side, on a real control plane with a
// real router.
//
// Fanfare's speaker runs on node n1, kube-proxy on node n3. Each node has its own network
// namespace, so that neither program affects the other's packets. Both read the same API
// server and receive the same events. One measurement follows with both on each node.
package kube
