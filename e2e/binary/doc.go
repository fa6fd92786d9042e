// Package binary builds the fanfare binary for the tests of several packages. They may
// build concurrently; it is linked once.
package binary
