// Package state has what the proxy receives and what its backends share: the [State] with its
// [Limits], and its [Element] values, by which the nftables backend writes it and all
// backends compare it with what the kernel holds. It is pure: it knows addresses and ports,
// and asks no kernel.
package state
