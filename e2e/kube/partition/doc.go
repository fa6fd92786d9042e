// Package partition tests which nodes claim a layer 2 address during combined failures: nodes
// without membership messages, an API server that is down or unreachable for one node,
// frozen speakers, lost links. It uses the laboratory with a real control plane. It is its
// own package because it takes more than a minute.
package partition
