// Command testsum reads the output of `go test -json` and prints a summary: a line for each
// package, skipped tests with the reason, the output of failed tests, and the counts.
//
//	go test -json ./... | go run ./hack/testsum
//
// It exits with 1 when a test or a package failed, when nothing was run, and, with CI=true,
// when a test was skipped: a test that never runs in CI would rot.
package main

import (
	"fmt"
	"os"
)

func main() {
	s, err := read(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
	s.report(os.Stdout)
	if err := s.verdict(os.Getenv("CI") == "true"); err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
}
