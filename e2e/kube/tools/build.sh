#!/bin/bash
# Builds the Kubernetes programs for the tests as one binary and prints its path. It
# reuses a binary of the same modules and Go version: a full build takes some five
# minutes on two cores.
#
# ../oldest/build.sh is a link to this script: it builds the module of its own folder.
#
#   build.sh           build if necessary
#   build.sh --find    fail if it does not exist
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

key=$(cat go.mod go.sum main.go build.sh <(go version) | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fanfare
name=kube-$(basename "$PWD")
tools=$cache/$name-$key
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
flock 9 # Tests of several packages may run concurrently.
if [[ ! -x $tools ]]; then
	version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
	echo "building Kubernetes $version for the tests, once; this takes some minutes" >&2
	minor=${version#v1.}
	v=k8s.io/component-base/version
	# The programs refuse to start without a semantic version.
	CGO_ENABLED=0 go build -trimpath -o "$tools.new" -ldflags="-s -w -X $v.gitVersion=$version
		-X $v.gitMajor=1 -X $v.gitMinor=${minor%%.*} -X $v.gitCommit=x -X $v.gitTreeState=clean -X $v.buildDate=2026-01-01T00:00:00Z" .
	mv "$tools.new" "$tools"
	# Binaries of older versions are not needed.
	find "$cache" -maxdepth 1 -name "$name-*" ! -name "$(basename "$tools")" -mtime +7 -delete
fi
echo "$tools"
