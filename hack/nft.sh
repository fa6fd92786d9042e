#!/bin/sh
# Unpacks the nft of several Debian releases beside each other, for the test that
# writes tables with one and lists them with another:
#
#	hack/nft.sh DIRECTORY
#
# Each DIRECTORY/VERSION/nft runs with the loader and the libraries of its own
# release. What exists is kept. The machine's own apt configuration is read for
# the mirror and the keys, and never changed.
set -eu

to=$1
mkdir -p "$to"
to=$(cd "$to" && pwd)
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Label: Debian' | head -n 1)
[ -n "$mirror" ] || { echo "hack/nft.sh: apt has no Debian mirror; run apt-get update" >&2; exit 1; }
keys=/usr/share/keyrings/debian-archive-keyring.gpg

fetch() { # SUITE
	apt=$work/$1
	mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/etc/preferences.d" "$apt/deb"
	echo "deb [signed-by=$keys] $mirror $1 main" >"$apt/etc/sources.list"
	: >"$apt/status"
	set -- -qq -o Dir::Etc="$apt/etc" -o Dir::Etc::sourceparts=/dev/null -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" \
		-o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none
	apt-get "$@" update
	all=$(apt-cache "$@" depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances nftables |
		grep '^[a-z]' | grep -E '^(nftables|lib)' | grep -v -E '^lib(gcc|crypt|nss)')
	(cd "$apt/deb" && apt-get "$@" download $all)
}

unpack() { # VERSION SUITE
	[ -x "$to/$1/nft" ] && return
	fetch "$2"
	root=$to/$1.new
	rm -rf "$root"
	mkdir "$root"
	for deb in "$work/$2"/deb/*.deb; do dpkg-deb --extract "$deb" "$root"; done
	# The packages' directories may be links: the loader is asked for by what it is.
	loader=$(cd "$root" && find . -name 'ld-linux*' | head -n 1)
	libraries=$(cd "$root" && find . -name 'libc.so.6' -o -name 'libnftables.so.1' -o -name 'libtinfo.so.6' | xargs -n 1 dirname | sort -u | sed "s,^\.,\$here," | paste -sd :)
	cat >"$root/nft" <<END
#!/bin/sh
here=\$(dirname "\$0")
exec "\$here/$loader" --library-path "$libraries" "\$here/usr/sbin/nft" "\$@"
END
	chmod +x "$root/nft"
	"$root/nft" --version | grep -q "v$1 " || { echo "hack/nft.sh: $2 has $("$root/nft" --version), not $1" >&2; exit 1; }
	rm -rf "$to/$1"
	mv "$root" "$to/$1"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unpack 0.9.8 bullseye
unpack 1.0.6 bookworm
unpack 1.1.3 trixie
