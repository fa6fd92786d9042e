// Package benchtest builds what the tests of the benchmarks measure.
package benchtest
