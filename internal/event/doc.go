// Package event writes Events (events.k8s.io/v1) of Fanfare's processes. An Event's name has a hash of what it is
// about, so that writing it twice, after a lost answer, creates one.
//
// client-go's tools/events is not used: its names are random, and it drops what the API server does not accept at once.
package event
