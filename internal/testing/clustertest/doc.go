// Package clustertest has Kubernetes objects for tests, of one line each. It tests nothing itself.
package clustertest
