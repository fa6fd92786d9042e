#!/bin/bash
# Builds the programs of Kubernetes that the tests run, and prints the path of
# the file that is all of them. What was built once from the same modules by the
# same Go is found again: a build from nothing takes some five minutes of two cores.
#
#   build.sh           build if need be
#   build.sh --find    only find; fails when it was not built yet
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

key=$(cat go.mod go.sum main.go build.sh <(go version) | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fanfare
tools=$cache/kube-tools-$key
if [[ -x $tools ]]; then
	echo "$tools"
	exit
fi
if [[ ${1:-} == --find ]]; then
	echo "$PWD/build.sh was not run" >&2
	exit 1
fi

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # Tests of several packages may want it at once.
if [[ ! -x $tools ]]; then
	echo "building Kubernetes for the tests, once; this takes some minutes" >&2
	version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
	minor=${version#v1.}
	v=k8s.io/component-base/version
	# Without a version the programs refuse to start: it must be a semantic one.
	CGO_ENABLED=0 go build -trimpath -o "$tools.new" -ldflags="-s -w -X $v.gitVersion=$version
		-X $v.gitMajor=1 -X $v.gitMinor=${minor%%.*} -X $v.gitCommit=x -X $v.gitTreeState=clean -X $v.buildDate=2026-01-01T00:00:00Z" .
	mv "$tools.new" "$tools"
	# The results of older versions are no longer used.
	find "$cache" -maxdepth 1 -name 'kube-tools-*' ! -name "$(basename "$tools")" -mtime +7 -delete
fi
echo "$tools"
