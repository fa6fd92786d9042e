#!/bin/bash
# Builds Kubernetes' own tests, e2e.test, and agnhost, the program of their pods, and prints their folder: a full build
# takes some two minutes on two cores after that of ../tools, which compiles most of it.
source "$(dirname "${BASH_SOURCE[0]}")/../cached.sh"

build() {
	local flags
	flags=$(kubernetes)
	export CGO_ENABLED=0
	go build -trimpath -ldflags="$flags" -o "$1/agnhost" k8s.io/kubernetes/test/images/agnhost
	go test -c -trimpath -vet=off -ldflags="$flags" -o "$1/e2e.test" k8s.io/kubernetes/test/e2e
}

cached conformance
