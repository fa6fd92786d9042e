// Package measure is the common part of the benchmarks: durations, resource usage of
// processes, notifications about the kernel's tables, and the pages that show the results.
package measure
