// Package counterparts has each field of MetalLB's objects and what becomes of it. docs/reference/metallb.md is made
// from it, and tests of internal/metallb compare it with MetalLB's CRDs and with what the conversion does. No program
// links it.
package counterparts
