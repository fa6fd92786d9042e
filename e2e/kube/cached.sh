# The build.sh of each folder reads this. cached NAME FILE... prints the path of the programs that `build PATH` builds,
# and builds them only if that was not done before with the same files, modules and Go version.
#
#   build.sh           build if necessary
#   build.sh --find    fail if they do not exist
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[1]}")"
find=${1:-}

cached() {
	local name=$1 key cache programs
	shift
	key=$(cat go.mod go.sum build.sh ../cached.sh "$@" <(go version) | sha256sum | cut -c1-16)
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/fanfare
	programs=$cache/$name-$key
	if [[ ! -e $programs && $find == --find ]]; then
		echo "$PWD/build.sh was not run" >&2
		exit 1
	fi
	if [[ ! -e $programs ]]; then
		mkdir -p "$cache"
		exec 9>"$cache/lock"
		flock 9 # Tests of several packages may run concurrently.
	fi
	if [[ ! -e $programs ]]; then
		echo "building $name for the tests, once; this takes some minutes" >&2
		rm -rf "$programs.new"
		build "$programs.new" >&2
		mv "$programs.new" "$programs"
		# Programs of older versions are not needed.
		find "$cache" -maxdepth 1 -name "$name-*" ! -name "$name-$key" -mtime +7 -exec rm -rf {} +
	fi
	echo "$programs"
}

# kubernetes prints the flags of the linker with Kubernetes' version: its programs refuse to start without a semantic one.
kubernetes() {
	local version minor v=k8s.io/component-base/version
	version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
	minor=${version#v1.}
	echo "-s -w -X $v.gitVersion=$version -X $v.gitMajor=1 -X $v.gitMinor=${minor%%.*}" \
		"-X $v.gitCommit=x -X $v.gitTreeState=clean -X $v.buildDate=2026-01-01T00:00:00Z"
}
