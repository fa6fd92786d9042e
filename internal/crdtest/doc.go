// Package crdtest tells tests what the API server says to an object of ours, without an
// API server: it runs the API server's own libraries on the CRDs in manifests/crds.
//
// It does not know other objects, and nothing of admission besides the CRD.
package crdtest
