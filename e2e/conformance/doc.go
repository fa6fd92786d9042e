// Package conformance runs Kubernetes' own end-to-end tests of Services of type LoadBalancer, and
// makes a page of their results.
//
// It has no cluster: TestConformance of e2e/kubelet builds one for each set-up.
//
// tests.go lists tests and set-ups, and says which test is left out where, and why. run.go runs
// e2e.test, reports.go reads its reports, and results.go stores the results and makes the page
// from them.
package conformance

//go:generate go test -count=1 -run=^TestPageIsOfItsResults$ . -page=../../docs/benchmarks/conformance.md
