// Package lab is the laboratory. It tests Fanfare with real packets, a real router (FRR or
// BIRD 2) and the real kernel, on one machine and without containers.
//
// [Up] builds a topology in containerlab's format from network namespaces and starts the
// router's daemons in the router's namespace. Pods are servers in this process; their
// sockets live in the pods' namespaces. A speaker is the fanfare binary in its node's
// namespace. All speakers read one folder of YAML. [Observer] records the router's routes
// and the nodes' nftables on one clock. [Scenario] runs Fanfare's promises step by step and
// checks them.
//
// The runner implements the part of containerlab's format that the file uses, and refuses
// the rest. It differs from containerlab in two points: tests start and kill the main
// process (cmd) of a pod or node, and the router's software runs from a directory of the
// lab, so that nothing outside the lab changes.
//
// Every lab has an identifier. Its namespaces are called ff-IDENTIFIER-NODE, and everything
// else is in one directory, with a record of each started process. [Sweep] removes what
// crashed labs left, by that record alone.
//
// The lab needs root and the packages that hack/setup.sh installs.
//
// # Files
//
//   - lab.go builds the lab: topology.go (the file), namespace.go, process.go, missing.go (what the
//     machine lacks), ports.go, await.go, fill.go (conntrack), partition.go.
//   - cluster.go has the objects, speaker.go and pod.go the nodes' processes, client.go and l2.go the
//     hosts, router.go the router: frr.go or bird.go.
//   - calico.go is Calico's BIRD on the nodes, felix.go writes the rules of its agent, from the
//     templates in the folder felix.
//   - load.go, timeline.go, flows.go and trace.go are the traffic; observe.go and conntrack.go what is seen.
//   - scenario.go has the steps: scenario_service.go, scenario_load.go, scenario_flows.go,
//     scenario_end.go, scenario_aggregate.go, scenario_bird.go, scenario_l2.go. columns.go and
//     guide.go print.
package lab
