// Package notify has a channel of one value say that something has changed since its reader last
// looked: changes that were not read yet become one.
package notify

// Changed puts a value into c unless there is one. It never waits for the reader.
func Changed(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
