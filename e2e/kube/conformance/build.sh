#!/bin/bash
# Builds Kubernetes' own tests, e2e.test, and agnhost, the program of their pods, and prints
# their folder. It reuses programs of the same modules and Go version: a full build takes some
# two minutes on two cores after that of ../tools, which compiles most of it.
#
#   build.sh           build if necessary
#   build.sh --find    fail if they do not exist
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

key=$(cat go.mod go.sum build.sh <(go version) | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fanfare
programs=$cache/conformance-$key
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
	version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
	echo "building e2e.test of Kubernetes $version, once; this takes some minutes" >&2
	minor=${version#v1.}
	v=k8s.io/component-base/version
	flags="-s -w -X $v.gitVersion=$version -X $v.gitMajor=1 -X $v.gitMinor=${minor%%.*}
		-X $v.gitCommit=x -X $v.gitTreeState=clean -X $v.buildDate=2026-01-01T00:00:00Z"
	export CGO_ENABLED=0
	rm -rf "$programs.new"
	go build -trimpath -ldflags="$flags" -o "$programs.new/agnhost" k8s.io/kubernetes/test/images/agnhost
	go test -c -trimpath -vet=off -ldflags="$flags" -o "$programs.new/e2e.test" k8s.io/kubernetes/test/e2e
	mv "$programs.new" "$programs"
	# Programs of older versions are not needed.
	find "$cache" -maxdepth 1 -name 'conformance-*' ! -name "$(basename "$programs")" -mtime +7 -exec rm -rf {} +
fi
echo "$programs"
