// Package ipam measures how soon many Services get addresses, on a real control plane.
package ipam
