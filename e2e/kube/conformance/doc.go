//go:build programs

// Package conformance names the programs that build.sh builds, for go.mod.
package conformance

import (
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
