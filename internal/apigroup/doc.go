// Package apigroup makes REST clients for single API groups. client-go's clientset, and its scheme, have the types of
// all of Kubernetes: a minimal program that imports them grew by 10 MB, and every node would pay for it.
package apigroup
