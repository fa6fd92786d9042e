#!/bin/bash
# Builds MetalLB's controller and speaker for the tests and prints their folder. It reuses
# programs of the same modules and Go version: a full build takes some two minutes on two
# cores.
#
#   build.sh           build if necessary
#   build.sh --find    fail if they do not exist
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

key=$(cat go.mod go.sum build.sh <(go version) | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fanfare
programs=$cache/metallb-$key
if [[ -d $programs ]]; then
	echo "$programs"
	exit
fi
if [[ ${1:-} == --find ]]; then
	echo "$PWD/build.sh was not run" >&2
	exit 1
fi

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # Tests of several packages may run concurrently.
if [[ ! -d $programs ]]; then
	echo "building MetalLB for the tests, once; this takes some minutes" >&2
	rm -rf "$programs.new"
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$programs.new/" go.universe.tf/metallb/controller go.universe.tf/metallb/speaker
	mv "$programs.new" "$programs"
	# Programs of older versions are not needed.
	find "$cache" -maxdepth 1 -name 'metallb-*' ! -name "$(basename "$programs")" -mtime +7 -exec rm -rf {} +
fi
echo "$programs"
