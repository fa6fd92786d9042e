// Package crdtest tells tests whether the API server accepts an object, without an
// API server: it runs the API server's own libraries on the CRDs in manifests/crds.
//
// It does not know other objects, and nothing of admission besides the CRD.
package crdtest
