// Package proxytest is for tests of package proxy and of its backends. [Lab] is a node with a
// router, a client, pods and another node, all in namespaces, and packets between them. [World]
// makes random States, [Scenes] reads States and packets from files, [Trace] follows a packet
// through rules without a kernel. [NFT], [IPSet] and [ReadSet] change and read the kernel as
// another program would; [FillConntrack] fills conntrack's table.
//
// It knows no backend: what it reads is what the kernel, nft or iptables-save show.
package proxytest
