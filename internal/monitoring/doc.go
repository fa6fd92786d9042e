// Package monitoring serves metrics and health over TCP.
//
// At a loopback address every process of the node can read metrics. At any other address the API server decides: a
// request needs a bearer token (TokenReview) of an account with the right to get the path (SubjectAccessReview), and
// the connection is encrypted, since the token is worth more than the metrics. So do controller-runtime and
// kube-rbac-proxy.
//
// Health has an address of its own, without encryption, for the kubelet's probes.
//
// monitoring.go listens and serves, auth.go asks the API server about a request, and
// certificate.go loads the certificate or makes one.
package monitoring
