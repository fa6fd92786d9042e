// Package binary builds the program for the tests that run it as a process. Those of
// several packages want it, at one time or one after the other: it is linked once.
package binary
