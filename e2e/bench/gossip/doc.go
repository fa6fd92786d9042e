// Package gossip measures how soon members detect a dead node, and how often they take a living
// one for dead, in clusters that no laboratory holds: internal/membership/gossip simulates them.
//
// The simulation is a test, because testing/synctest runs only in one. It runs the real code of
// all members in one process, over a network in memory, by a clock that skips the time in which
// no member has anything to do. This package runs that test and writes the page.
package gossip
