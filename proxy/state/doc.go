// Package state has what the proxy receives and what its backends share: the [State] with its
// [Limits], and its [Element] values, by which the nftables backend writes it and all
// backends compare it with what the kernel holds. It is pure: it knows addresses and ports,
// and asks no kernel.
//
// The files: state.go and redirects.go (the input), text.go (the same in words), validate.go and
// limits.go (what is refused), lookup.go, mode.go. element.go lists the sets, render.go makes their
// elements, with sourceranges.go, affinity.go, snat.go (masquerade), hairpin.go and gotonumber.go; scheduler.go and
// maglev.go choose backends, programs.go for iptables. diff.go compares two lists of elements; name.go
// has names that several files need.
package state
