// Package proxy forwards the traffic of virtual addresses to their endpoints
// with the kernel's netfilter, as a [State] says.
package proxy
