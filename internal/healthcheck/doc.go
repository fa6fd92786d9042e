// Package healthcheck serves the healthCheckNodePort of Services, as kube-proxy does: a
// load balancer in front of the nodes learns there which nodes have endpoints of a Service
// with externalTrafficPolicy Local.
//
// It serves Services that kube-proxy leaves alone, or clusters without kube-proxy: a port
// can have one listener. Responses equal kube-proxy's byte for byte, since load balancers
// match them.
//
// It knows nothing of Kubernetes and decides nothing: [Server.Set] lists what to serve.
package healthcheck
