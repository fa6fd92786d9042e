// Package plantest gives tests snapshots to decide about: a [World] that changes at
// random, and YAML that is read as `fanfare speaker --files` reads it.
package plantest
