// Package retry has the pauses between attempts that never end. It doesn't wait: each caller also waits for its
// own signals.
package retry
