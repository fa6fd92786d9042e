// Package bubble runs tests in bubbles of testing/synctest, where time passes at once,
// in a way that the race detector survives.
package bubble
