#!/usr/bin/env bash
# Install what the tests and the laboratory need on a Debian 12 that has Go; with the argument
# release, also what the tests of a release need.
# Nothing is done, and nothing asked of the network, when it is all there. No
# service is started: the laboratory runs FRR's daemons by itself, in namespaces.
set -euo pipefail

# package -> a file of it that is used
declare -A needed=(
    [frr]=/usr/lib/frr/bgpd
    [frr-pythontools]=/usr/lib/frr/frr-reload.py
    # the second router that the laboratory measures with
    [bird2]=/usr/sbin/bird
    [iproute2]=/sbin/ip
    [nftables]=/usr/sbin/nft
    [iptables]=/usr/sbin/iptables
    # kube-proxy 1.32 removes its sets by it
    [ipset]=/usr/sbin/ipset
    # names of protocols in rules; a minimal system is without
    [netbase]=/etc/protocols
    [conntrack]=/usr/sbin/conntrack
    [curl]=/usr/bin/curl
    [tcpdump]=/usr/bin/tcpdump
    # real kubelets run pods with these
    [containerd]=/usr/bin/containerd
    [runc]=/usr/sbin/runc
    [containernetworking-plugins]=/usr/lib/cni/bridge
    # Kubernetes' own tests run these in pods, and curl
    [netcat-openbsd]=/bin/nc.openbsd
    [wget]=/usr/bin/wget
    # the program of proxy/fastpath is compiled with exactly these
    [clang-14]=/usr/bin/clang-14
    [llvm-14]=/usr/bin/llvm-strip-14
    # go test -race is linked by a C compiler
    [gcc]=/usr/bin/gcc
    [libc6-dev]=/usr/include/stdlib.h
)
if [ "${1:-}" = release ]; then
    # runs the programs for arm64
    needed[qemu-user-static]=/usr/bin/qemu-aarch64-static
fi

missing=()
for package in "${!needed[@]}"; do
    [ -e "${needed[$package]}" ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "hack/setup.sh: not root and no sudo; install: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
fi
command -v apt-get >/dev/null || { echo "hack/setup.sh: no apt-get here; install: ${missing[*]}" >&2; exit 1; }

# Debian starts the services of a package that it installs, unless this file
# says no (101: forbidden by policy). One that is there already stays as it is.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
elif ! grep -q 101 "$policy"; then
    echo "hack/setup.sh: $policy is there and may let services start" >&2
fi

install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends -o DPkg::Lock::Timeout=120 \
        -o Dpkg::Options::=--force-confold "$@" </dev/null
}

echo "installing: ${missing[*]}"
# The lists of packages may be missing or out of date; fetch them if so.
install "${missing[@]}" 2>/dev/null || {
    "${as_root[@]}" apt-get update -o DPkg::Lock::Timeout=120 </dev/null
    install "${missing[@]}"
}
