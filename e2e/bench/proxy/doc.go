// Package proxy measures what Fanfare's and kube-proxy's rules cost: passing packets,
// changing rules, loading them, and their memory.
//
// The programs are the real ones on a real control plane. Each writes its rules in its own
// network namespace; all namespaces are between the same client and server.
package proxy
