#!/bin/bash
# Builds MetalLB's controller and speaker for the tests and prints their folder: a full build takes some two minutes on
# two cores.
source "$(dirname "${BASH_SOURCE[0]}")/../cached.sh"

build() {
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$1/" go.universe.tf/metallb/controller go.universe.tf/metallb/speaker
}

cached metallb
