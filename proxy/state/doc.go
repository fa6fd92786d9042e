// Package state has the input of the proxy, and what its backends share: the [State] with its
// [Limits], and [Element] values. The nftables backend writes a State as elements, and all backends
// compare them with the kernel's. The package is pure: it knows addresses and ports, and reads
// nothing from the kernel.
//
// The files: state.go and redirects.go (the input), text.go (the State as text), validate.go and
// limits.go (what is refused), mode.go. element.go lists the sets. render.go makes their elements,
// with affinity.go, jhash.go, snat.go (masquerade) and gotonumber.go; VIPs share only those of
// replies.go. scheduler.go and maglev.go choose backends, and programs.go does for iptables. diff.go
// compares two lists of elements; name.go has names that several files need.
package state
