// Package v1alpha1 holds the objects with which Fanfare is configured, in API
// group fanfare.io. They have no logic: internal/cluster turns them into checked
// values.
//
// What the API server can check is said in markers here, most of it in CEL, so
// that a mistake is refused when it is made and no webhook is needed. Without
// an API server internal/cluster checks the same and more.
//
// +kubebuilder:object:generate=true
// +groupName=fanfare.io
package v1alpha1

//go:generate go tool controller-gen object crd:crdVersions=v1 paths=. output:crd:artifacts:config=../../manifests/crds
