#!/bin/bash
# Builds the Kubernetes programs for the tests as one binary and prints its path: a full build takes some five minutes
# on two cores. ../oldest/build.sh is a link to this script: it builds the module of its own folder.
source "$(dirname "${BASH_SOURCE[0]}")/../cached.sh"

build() { CGO_ENABLED=0 go build -trimpath -ldflags="$(kubernetes)" -o "$1" .; }

cached "kube-$(basename "$PWD")" main.go
