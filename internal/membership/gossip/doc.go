// Package gossip detects within a fraction of a second which nodes' speakers are alive,
// and carries short messages between them.
//
// It is hashicorp/memberlist (SWIM with Lifeguard) with other timers and six additions:
//
//   - No node is dead on the word of another one. A node that receives the report probes
//     the suspect itself, by packets and over TCP, for 80 ms in which it has itself been
//     running. A process that does not answer while its kernel still accepts connections is
//     suspended, hung or short of processor time: it is dead only after a second.
//   - Only nodes of the cluster are members, at their own addresses. Other
//     sources cost a look into a map. Senders without a key of the key file are counted and
//     named.
//   - A copy of earlier traffic is rejected, whatever it was. Memberlist's own encryption
//     accepts it, so session.go (packets) and stream.go (connections) replace that.
//   - Members ping a dead node at once and regularly, together twenty times a second, until
//     it is back or its Node is deleted. Memberlist alone waits for the next exchange with a
//     node that remembers the dead one, which takes half a minute or never happens.
//   - A process that was suspended detects that when it continues, and exchanges its state
//     with other nodes: it refutes its death, and is back.
//   - A speaker that leaves has not died. One that restarts leaves pods and rules behind
//     that work as before.
//
// # Keys
//
// All traffic is encrypted and authenticated by AES-256-GCM, with keys that are derived for
// each process and connection from that of the key file. The key file has one key a
// line, any text of 16 bytes or more; the key is its SHA-256. Traffic under any of these
// keys is accepted. The first key encrypts, but not in the first five minutes after it
// appeared: until then the previous key does, so that nodes whose file changes later can
// decrypt. A removed key is accepted for ten more minutes. To change the key, add a new line
// before the old one, and remove the old one ten minutes later.
//
// # Boot numbers
//
// Each process has a boot number, the time of its start in nanoseconds. Others accept neither
// packets nor messages of a lower one than they know of a node: those are of its earlier
// processes. A process learns from others whether they know a higher one, as after a clock
// was set back, and takes one above it. It does the same when it learns that another member has
// used its name: a holder of the key can do that, but its words do not last. A number that is more
// than a year ahead is refused, since no process could take a higher one than the highest.
//
// # Timers
//
// Each node pings one other node each 60 ms, in turn. If it receives no ack in 20 ms, three
// other nodes ping the target too, and it tries TCP; after 60 ms the target is suspect. If
// the target has not refuted that in 120 ms × max(1, log₁₀ n), it is reported dead, and each
// node that receives the report probes four times, each 20 ms. From 50 nodes on, half of the
// 120 ms suffices, because of the logarithm. With n nodes, it takes about 60 ms until a node
// pings a dead one.
//
// TestSimulation simulates a cluster whose packets are lost, whose nodes stall, and of which
// one after the other dies. docs/benchmarks/gossip.md has its results with 3 to 1,000 nodes.
//
// A slow node pings more slowly (Lifeguard's awareness, up to eight times) instead of
// suspecting all others.
//
// # Files
//
// gossip.go starts and stops; config.go configures memberlist and delegate.go is what it calls;
// join.go finds nodes, probe.go verifies a death, message.go and send.go carry messages. Below
// memberlist, listen.go binds the ports and transport.go reads them; session.go seals packets and
// stream.go connections, with keys.go, window.go rejects copies, and admission.go what is of no
// node. problems.go and metrics.go report.
package gossip
