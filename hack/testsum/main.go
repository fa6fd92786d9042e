// Command testsum reads what `go test -json` writes and prints it for people: a
// line a package, the tests that were skipped and why, the output of those that
// failed, and the counts.
//
//	go test -json ./... | go run ./hack/testsum
//
// It exits with 1 when a test or a package failed, when nothing was run, and,
// with CI=true, when a test was skipped: a test that CI never runs would rot.
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
