// Package event writes Events (events.k8s.io/v1) of Fanfare's processes. An Event's name has a hash of what it is
// about, so that writing it twice, after a lost answer, creates one.
//
// client-go's recorders are not used: their names are random or times, and they drop what the API server does not
// accept at once (docs/decisions/0009).
package event
