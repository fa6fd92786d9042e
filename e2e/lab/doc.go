// Package lab is the laboratory: it proves Fanfare's main job with real packets,
// a real router (FRR, or BIRD 2) and the real kernel, on one machine and without
// containers.
//
// [Up] builds a topology in containerlab's format out of network namespaces and
// starts the router's daemons in its own. Pods are servers in this process whose
// sockets live in the pods' namespaces; speakers are the fanfare binary, each
// in its node's namespace, all of them reading one folder of YAML. [Observer]
// watches the router's routes and the nodes' nftables on one clock. [Scenario]
// shows what Fanfare promises, step by step, and checks it.
//
// The runner understands the part of containerlab's format that the file uses
// and refuses the rest. Two things that a container does by itself are done in
// the runner's own way: the main process (cmd) of a pod or node, which tests
// start and kill, and the router's software, which runs from a directory of the
// lab's own, so that nothing outside the lab is touched.
//
// Every lab has an identifier. Its namespaces are called ff-IDENTIFIER-NODE, and
// everything else is in one directory with a record of each process that was
// started. [Sweep] removes what crashed labs left, by that record alone.
//
// It needs root, the packages that hack/setup.sh installs, and nothing else.
package lab
