// Package linkwatch signals that links, addresses or routes of a network namespace have changed. A
// signal does not say what has changed: the receiver lists what it needs, which stays right
// when the kernel drops notifications.
package linkwatch
