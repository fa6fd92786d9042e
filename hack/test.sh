#!/usr/bin/env bash
# Runs every test and prints a summary: what `make test` does after the set-up.
#
# Many tests ask the kernel or a router, which Go's cache of results cannot see: -count=1 asks again.
# `make lint` vets all packages; with the race detector, that would be a second time for each, and for
# all that they import.
#
# The laboratories and benchmarks, in e2e, run Fanfare as processes, and many of them count lost requests
# or measure delays. They go without the race detector, which does not see those processes, but makes the
# clients that send the load several times slower. The last three laboratories have the machine to
# themselves, but for packages that measure nothing, and trials of the benchmarks: those run in the time
# that the laboratories leave.
#
#   test.sh          everything
#   test.sh patient  those packages alone, as JSON
set -uo pipefail
cd "$(dirname "$0")/.."

module=$(go list -m)
labs="^$module/e2e/(kube|kubelet|lab|matrix)(/|$)"
benches="^$module/e2e/bench(/|$)"
patient="^$module(/(api|cmd|controller|hack|internal|manifests)(/.*)?)?$"
# The slowest packages begin first: most of them wait, for routers and for time to pass, while others
# work.
others=$(go list ./proxy ./bgp ./... | grep -vE "$labs" | grep -vE "$benches" | grep -vE "$patient") || exit
benches=$(go list ./... | grep -E "$benches") || exit
patient=$(go list ./... | grep -E "$patient") || exit

# The race detector would wait for a second at the end of each package.
export GORACE=atexit_sleep_ms=50

code=0
run() {
	go test -count=1 -vet=off -timeout=20m -json "$@" || code=$?
}
# The race detector needs cgo, which the Makefile switches off.
race=(env CGO_ENABLED=1 go test -race -count=1 -vet=off -timeout=20m -json)

patiently() {
	"${race[@]}" $patient || code=$?
	run -run='^TestHostileTenant$' .
	run $benches
	exit $code
}

all() {
	# These control planes live for seconds: a fifth of their time would be for collecting garbage. The
	# compiler, which may need more than the limit, does not get it.
	run -exec='env GOGC=off GOMEMLIMIT=500MiB' ./e2e/kube/...
	"${race[@]}" $others || code=$?
	results=$(mktemp)
	hack/idle.sh hack/test.sh patient >"$results" &
	idle=$!
	trap 'kill -- -$idle 2>/dev/null; rm -f "$results"' EXIT
	run ./e2e/kubelet
	run -parallel=3 ./e2e/lab # each waits most of the time
	run ./e2e/matrix
	wait "$idle" || code=$?
	cat "$results"
	exit $code
}

case ${1:-} in
patient) patiently ;;
*) all | go run ./hack/testsum ;;
esac
