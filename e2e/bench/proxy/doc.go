// Package proxy measures what Fanfare's and kube-proxy's rules cost: packets that pass
// them, changes to them, loading them, and holding them.
//
// The programs are the real ones, on a real control plane. Each writes its rules in a
// network namespace of its own, between one client and one server that all share.
package proxy
