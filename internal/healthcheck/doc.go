// Package healthcheck answers on the healthCheckNodePort of Services, as kube-proxy
// does: a load balancer in front of the nodes asks there which of them have
// endpoints of a Service with externalTrafficPolicy Local.
//
// It is for Services that kube-proxy leaves alone, or clusters without it: a port
// can have one listener. Answers have kube-proxy's bytes, since load balancers match
// them.
//
// It knows nothing of Kubernetes, and decides nothing: who is to be answered for,
// and with what, is in [Server.Set].
package healthcheck
