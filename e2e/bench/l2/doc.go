// Package l2 measures how long an address announced over layer 2 is unreachable when
// its node fails, in several ways, and what many addresses cost at rest.
//
// It uses the laboratory (e2e/lab): three nodes, and a host on their segment that
// opens connections all the time. The times are those of the neighbour table in the
// host's kernel.
package l2
