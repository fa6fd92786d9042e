// Package conntrack deletes stale conntrack entries: entries that a change of the State has made
// wrong. It also makes the clients of ended connections notice. See docs/concepts/connections.md.
//
// stale.go decides which entries are stale after a change, delay.go how long they stay, and cleaner.go deletes them in
// the background. draining.go delays that for flows to a draining backend, of every protocol except TCP: TCP
// connections stay until they end. flow.go lists and deletes entries, and challenge.go makes a client send a packet
// (RFC 5961).
//
// Package proxy deletes some entries itself by [DeleteFlowsIf], before it announces an address:
// untranslated flows and ended connections (proxy/preparation.go).
package conntrack
