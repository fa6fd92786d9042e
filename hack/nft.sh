#!/usr/bin/env bash
# Unpacks the nft of several Debian releases beside each other, for tests that
# write tables with one and list them with another:
#
#	hack/nft.sh DIRECTORY
#
# Each DIRECTORY/VERSION/nft runs with the loader and the libraries of its own
# release. What exists is kept.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
mkdir -p "$1"
to=$(realpath "$1")
exec 9>"$to/lock" # tests of several packages run at once
flock 9

unpack() { # VERSION SUITE
	[ -x "$to/$1/nft" ] && return
	new=$to/$1.new
	rm -rf "$new"
	"$here/image/debian.sh" "$(dpkg --print-architecture)" "$new" "$2" nftables
	# The packages' directories may be links: the loader is asked for by what it is.
	loader=$(cd "$new/root" && find . -name 'ld-linux*' | head -n 1)
	libraries=$(cd "$new/root" && find . -name 'libc.so.6' -exec dirname {} +)
	cat >"$new/nft" <<END
#!/bin/sh
root=\$(dirname "\$0")/root
exec "\$root/$loader" --library-path "\$root/$libraries" "\$root/usr/sbin/nft" "\$@"
END
	chmod +x "$new/nft"
	"$new/nft" --version | grep -q "v$1 " || { echo "nft.sh: $2 has $("$new/nft" --version), not $1" >&2; exit 1; }
	rm -rf "${to:?}/$1" "$new/archives" "$new/apt"
	mv "$new" "$to/$1"
}

unpack 0.9.8 bullseye
unpack 1.0.6 bookworm
unpack 1.1.3 trixie
