// Package v1alpha1 has the objects that configure Fanfare, in API group fanfare.io. They
// have no logic: internal/cluster converts them to checked values.
//
// Markers, mostly in CEL, let the API server reject invalid objects without a webhook.
// internal/cluster checks the same and more, for configurations without an API server.
//
// Each object has a file: addresspool.go, addressclaim.go (named by claimname.go), bgppeer.go,
// bgpadvertisement.go, l2advertisement.go and speakerstatus.go. Fields of several are in asn.go,
// selector.go and advertisementstatus.go; register.go adds all to a scheme.
//
// +kubebuilder:object:generate=true
// +groupName=fanfare.io
package v1alpha1

//go:generate go tool controller-gen object crd:crdVersions=v1 paths=. output:crd:artifacts:config=../../manifests/crds
