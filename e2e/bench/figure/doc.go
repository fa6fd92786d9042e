// Package figure draws the figures of docs/benchmarks: lines on axes, as SVG. The same
// figure is always the same bytes, so that a test can compare it with the file.
package figure
