// Package release tests `make release`: two runs write equal bytes, and the parts are what they
// say. The program and the tools of the image for arm64 run under qemu.
//
// It builds for two architectures and loads Debian's packages, so that it is not part of
// `make test`, but of `make release-test`: its tests have the build tag release.
package release
