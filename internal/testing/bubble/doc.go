// Package bubble runs tests in bubbles of testing/synctest, with fake time, in a way that
// the race detector survives.
package bubble
