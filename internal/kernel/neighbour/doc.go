// Package neighbour tests whether the kernels of hosts on this node's links answer: a node whose
// speaker has crashed still forwards, and one without power does not.
//
// It has the kernel's own neighbour table test them, by unicast ARP requests (RFC 826) for IPv4
// and Neighbor Unreachability Detection (RFC 4861 §7.3) for IPv6. No program on the host takes
// part, and few firewalls filter these packets. It does not test what the host forwards.
package neighbour
