// Package notify signals changes by a channel with a buffer of one value: several changes
// before the receiver reads become one signal.
package notify

// Changed sends a value to c unless its buffer is full. It never blocks.
func Changed(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
