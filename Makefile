# `make lab` and `make test` set up all that they need on a fresh Debian 12 with
# Go; `make help` says what else there is.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help lab lab-down containerlab matrix conformance e2e test test-short lint generate build image release release-test oldest-test bench bench-bgp bench-go bench-gossip bench-ipam bench-kube bench-l2 bench-load bench-proxy bench-scale setup kube-tools

# What a build calls itself, and the file that `make image` writes.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
IMAGE ?= bin/fanfare-image.tar

# GoBGP imports gRPC, which has pages for traces that Fanfare does not serve. They are
# templates, which find methods by name, so that the linker would keep all exported methods
# of all types: 6 MB in the memory of every node.
TAGS := grpcnotrace

# Programs, linters, and tests without the race detector are compiled with the same flags: Go compiles
# each dependency again for others.
export CGO_ENABLED := 0
export GOFLAGS := $(strip -trimpath $(filter-out -trimpath,$(GOFLAGS)))

# What bounds on delays of milliseconds are multiplied by in `make matrix`: clients, router and
# nodes share the machine's processors.
SLACK ?= 10

# Where govulncheck looks for known vulnerabilities: a URL, or file:// and a folder. A machine
# without the Internet has neither, so make lint goes without unless this is set.
VULNDB ?=

# Which of Kubernetes' own tests `make conformance` runs: a regular expression, empty for all.
TESTS ?=

# KEEP=1 leaves the laboratory up after `make lab`.
KEEP ?=

help: ## print this
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

lab: setup build ## run the scenario with a real router and real packets, step by step; KEEP=1 leaves it up
	./bin/lab up $(if $(KEEP),--keep)

lab-down: build ## remove every trace of the laboratory
	./bin/lab down

# The namespaces of `make lab` need neither program; this shows that the file is containerlab's.
containerlab: build ## deploy the laboratory with Docker and containerlab, check the main story, and remove it
	hack/containerlab.sh

e2e: setup kube-tools ## run Fanfare on real kubelets, shown step by step; `make test` does it too
	go test -count=1 -timeout=20m -v ./e2e/kubelet

# The results are merged into matrix.json, so that a run of some cells changes only these.
matrix: setup build kube-tools ## run every feature under every disturbance, under load; writes docs/benchmarks/matrix.md
	go test -count=1 -timeout=60m -v ./e2e/matrix -run '^TestMatrix$$' -all -slack=$(SLACK) -results='$(CURDIR)/docs/benchmarks/matrix.json' -page='$(CURDIR)/docs/benchmarks/matrix.md'

# The results are merged into conformance.json, so that TESTS='session affinity' changes only these.
conformance: setup build kube-tools ## run Kubernetes' own tests of load balancers in four set-ups, in 80 minutes; writes docs/benchmarks/conformance.md
	mkdir -p bin/conformance
	go test -count=1 -timeout=150m -v ./e2e/kubelet -run '^TestConformance$$' -all -tests='$(TESTS)' -pages='$(CURDIR)/docs/benchmarks' -reports='$(CURDIR)/bin/conformance'

test: setup build kube-tools ## run every test that this machine can run, with the race detector but for the laboratories
	hack/test.sh

test-short: ## run the tests that need a minute and no set-up
	go test -short ./...

lint: ## gofmt, go vet, staticcheck, exhaustive, prose, form, bash -n, go mod tidy; with VULNDB, govulncheck
	@unformatted=$$(git ls-files '*.go' | xargs -r gofmt -l -s); \
		if [ -n "$$unformatted" ]; then echo "gofmt -s would change:" $$unformatted; exit 1; fi
	go vet ./...
	go vet -tags=release ./e2e/release
	go -C hack/image vet ./...
	go -C e2e/containerlab/strict vet ./...
	go -C e2e/lab/coredns vet ./...
	go tool staticcheck ./...
	go tool exhaustive -default-signifies-exhaustive -ignore-enum-types='^reflect\.' ./...
	go run ./hack/prose .
	go run ./hack/form .
	bash -n .ci/run $(wildcard hack/*.sh hack/*/*.sh e2e/kube/*.sh e2e/kube/*/*.sh)
	go mod tidy -diff
	@go run ./hack/proportions -product ./cmd/fanfare
	$(if $(VULNDB),go run golang.org/x/vuln/cmd/govulncheck@v1.1.4 -db='$(VULNDB)' -tags=$(TAGS) ./...,\
		@echo 'make lint: VULNDB is not set, so govulncheck did not run: VULNDB=https://vuln.go.dev asks the public database')

generate: ## write generated code, manifests, reference pages, and the pages of benchmarks from their results
	go generate ./...

build: ## build bin/fanfare and bin/lab
	go build -tags=$(TAGS) -o bin/ ./cmd/fanfare ./e2e/lab/cmd/lab

# Everything in the image is built here, was installed by setup, or is of Debian's archive, which is asked once for
# the newer nft: no registry and no container program is.
NEWER = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fanfare/debian/trixie-$(shell go env GOARCH)
image: setup ## build bin/fanfare-image.tar, for docker, podman or ctr to load
	go build -tags=$(TAGS) -buildvcs=false -ldflags='-s -w -X main.release=$(VERSION)' -o '$(dir $(IMAGE))image/fanfare' ./cmd/fanfare
	mkdir -p '$(NEWER)'
	flock '$(NEWER)/lock' sh -c "[ -e '$(NEWER)/complete' ] || hack/image/debian.sh $$(go env GOARCH) '$(NEWER)' trixie nftables base-files"
	go -C hack/image run . -binary '$(abspath $(dir $(IMAGE))image/fanfare)' -license '$(abspath LICENSE)' -newer '$(NEWER)' -o '$(abspath $(IMAGE))' \
		-version '$(VERSION)' -revision "$$(git rev-parse HEAD 2>/dev/null || true)"

# Debian's packages for both architectures are loaded once, and kept in the user's cache directory.
release: setup ## VERSION=v1.2.3: write all files of a release to bin/release; a person publishes them
	TAGS=$(TAGS) hack/release.sh '$(VERSION)' bin/release

# Not part of `make test`: it builds for two architectures, and needs Debian's archive.
release-test: setup kube-tools ## make a release twice, compare, and run its parts, for arm64 by qemu
	hack/setup.sh release
	go test -count=1 -timeout=30m -tags=release -v ./e2e/release

# Not part of `make test`: it builds a second Kubernetes, once, in some minutes. The packages run
# one after the other, because the scenario counts lost requests.
oldest-test: setup ## run the tests of e2e/kube and the scenario with the oldest Kubernetes that works
	e2e/kube/oldest/build.sh
	go test -count=1 -timeout=20m -p=1 -json ./e2e/kube ./e2e/kube/scenario -oldest | go run ./hack/testsum

bench: setup build kube-tools ## run all benchmarks of docs/benchmarks but the matrix, one after the other, in about three hours
	go run ./e2e/bench all

bench-go: ## run the benchmarks of the packages (go test -bench)
	go test -run='^$$' -bench=. -benchmem ./...

bench-bgp: setup build ## measure many routes to several routers, beside FRR; writes docs/benchmarks/bgp.md
	go run ./e2e/bench bgp

bench-gossip: build ## simulate up to 1,000 members that fail, with losses and stalls; writes docs/benchmarks/gossip.md
	go run ./e2e/bench gossip

bench-ipam: setup build kube-tools ## measure how soon many Services have addresses; writes docs/benchmarks/ipam.md
	go run ./e2e/bench ipam

bench-scale: setup build kube-tools ## measure what many nodes cost the API server; writes docs/benchmarks/scale.md
	go run ./e2e/bench scale

bench-kube: setup build kube-tools ## measure beside kube-proxy on a real control plane; writes docs/benchmarks/kube.md
	go run ./e2e/bench kube

bench-l2: setup build ## measure failover over layer 2; writes docs/benchmarks/l2.md
	go run ./e2e/bench l2

bench-load: setup build ## measure up to 50,000 Services on one node; writes docs/benchmarks/load.md
	go run ./e2e/bench load

bench-proxy: setup build kube-tools ## measure what rules cost, beside kube-proxy's in both modes; writes docs/benchmarks/proxy.md
	go run ./e2e/bench proxy

# Build Kubernetes' own programs and tests, Helm and MetalLB, which e2e/kube and e2e/kubelet run: some
# nine minutes, once for each version; they are kept in the user's cache directory.
kube-tools:
	e2e/kube/tools/build.sh
	e2e/kube/metallb/build.sh
	e2e/kube/conformance/build.sh

# Install the packages that the tests and the laboratory use; nothing is done
# when they are there.
setup:
	hack/setup.sh
