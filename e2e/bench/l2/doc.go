// Package l2 measures how long an address announced over layer 2 is unreachable when its
// node fails, by kind of failure, and the cost of many idle addresses.
//
// It uses the laboratory (e2e/lab): three nodes, and a host on their segment that
// constantly opens connections. The times are those of the host's neighbour table.
package l2
