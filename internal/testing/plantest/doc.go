// Package plantest provides snapshots for tests: a [World] that changes at random, and YAML
// that is read like `fanfare speaker --files` does.
package plantest
