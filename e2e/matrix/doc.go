// Package matrix tests every feature under every disturbance: Layer 2 while a speaker is
// killed, BFD while the router restarts, and so on. Faults are mostly in combinations that
// no test has.
//
// A cell is one feature under one disturbance, in the laboratory of e2e/lab. While it
// happens, a client opens 200 connections a second and keeps 60 open, and the observer
// records announcements and rules. The cell fails if more is lost than the documentation
// promises for it: promises_test.go is the table of these promises.
//
//	go test ./e2e/matrix -run 'TestMatrix/l2-ipv4/speaker-killed'
//	make matrix
//
// matrix_test.go runs the cells. features_test.go and disturbances_test.go list their two sides,
// testbed_test.go is the laboratory for a feature, and cell_test.go runs one cell. judge_test.go
// compares its losses (losses_test.go, heartbeat_test.go) with the promises. results_test.go stores
// the results, and page_test.go makes the page from them.
package matrix

//go:generate go test -count=1 -run=^TestPageIsOfItsResults$ . -page=../../docs/benchmarks/matrix.md
