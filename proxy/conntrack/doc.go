// Package conntrack deletes the conntrack entries that a change of the State makes wrong, and
// makes the clients of ended connections notice. See docs/concepts/connections.md.
// stale.go decides which entries are wrong, and cleaner.go deletes them: udp.go has those of UDP,
// which stay for a second with a backend that drains.
//
// flow.go lists and deletes entries, and challenge.go makes a client send again (RFC 5961).
package conntrack
