// Package measure is what the programs that measure Fanfare have in common: how
// long things took, what processes used, what the kernel reported about its tables, and
// where in docs/benchmarks.md a program writes what it saw.
package measure
