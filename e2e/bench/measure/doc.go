// Package measure is what the programs that measure Fanfare have in common: how
// long things took, what processes used, what the kernel reported about its tables, and
// how a program writes its page of docs/benchmarks.
package measure
