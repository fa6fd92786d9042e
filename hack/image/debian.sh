#!/usr/bin/env bash
# Unpacks Debian's packages that the image has files of, for an architecture, and a database of
# dpkg that describes them. Nothing of this machine is changed, and nothing runs from a package:
# apt gets a state of its own, and the sources and keys of this machine.
#
#   debian.sh ARCH DIR [SUITE PACKAGE...]
#
# With a SUITE, such as trixie, the packages are of that release, from this machine's mirrors. A package
# that is in DIR/archives is not loaded again. DIR/complete exists when all is unpacked.
set -euo pipefail
arch=$1 dir=$(realpath -m "$2") suite=${3:-}
packages=(nftables iptables netbase base-files)
[ -z "$suite" ] || packages=("${@:4}")
root=$dir/root apt=$dir/apt
mkdir -p "$dir/archives/partial" "$apt/none/partial" "$apt/state/lists/partial" "$apt/cache"
: >"$apt/status" # Nothing is installed, so that all dependencies are loaded.

sources=()
if [ -n "$suite" ]; then
	mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Label: Debian' | head -n 1)
	[ -n "$mirror" ] || { echo "debian.sh: apt has no Debian mirror; run apt-get update" >&2; exit 1; }
	security=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Label: Debian-Security' | head -n 1)
	mkdir -p "$apt/etc/preferences.d"
	signed="deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
	echo "$signed $mirror $suite main" >"$apt/etc/sources.list"
	[ -z "$security" ] || echo "$signed $security $suite-security main" >>"$apt/etc/sources.list"
	sources=(-o Dir::Etc="$apt/etc" -o Dir::Etc::sourceparts=/dev/null)
fi

apt_get() {
	apt-get --quiet=2 --yes --no-install-recommends -o APT::Architecture="$arch" -o APT::Architectures="$arch" \
		-o APT::Sandbox::User= -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
		-o Dir::Cache::archives="$dir/archives" -o Debug::NoLocking=1 "${sources[@]}" "$@" </dev/null
}
apt_get update
# apt names only what it would load, so that it looks for packages in an empty directory here.
wanted=$(apt_get -o Dir::Cache::archives="$apt/none" --print-uris install "${packages[@]}" | cut -d' ' -f2)
[ -n "$wanted" ] || { echo "debian.sh: apt names no package for $arch" >&2; exit 1; }
apt_get --download-only install "${packages[@]}" >&2

# As on a machine with one /usr.
rm -rf "$root" "$dir/complete"
mkdir -p "$root/usr" "$root/var/lib/dpkg/info"
for d in bin sbin lib lib64; do
	mkdir "$root/usr/$d"
	ln -s "usr/$d" "$root/$d"
done
database=$root/var/lib/dpkg
echo 1 >"$database/info/format"
printf '%s\n' "$(dpkg --print-architecture)" "$arch" >"$database/arch"

# describe writes what dpkg-query shows of an installed package.
describe() {
	local deb=$1 name base control
	name=$(dpkg-deb --field "$deb" Package) base=$name
	[ "$(dpkg-deb --field "$deb" Multi-Arch)" != same ] || base=$name:$arch
	control=$(mktemp -d)
	dpkg-deb --control "$deb" "$control"
	[ ! -e "$control/md5sums" ] || cp "$control/md5sums" "$database/info/$base.md5sums"
	dpkg-deb --fsys-tarfile "$deb" | tar --list | sed 's|^\.||; s|/$||; s|^$|/.|' >"$database/info/$base.list"
	sed '1a Status: install ok installed' "$control/control" >>"$database/status"
	if [ -e "$control/conffiles" ]; then
		echo "Conffiles:" >>"$database/status"
		while read -r file; do
			echo " $file $(md5sum <"$root$file" | cut -d' ' -f1)" >>"$database/status"
		done <"$control/conffiles"
	fi
	echo >>"$database/status"
	rm -r "$control"
}

for deb in $wanted; do
	deb=$dir/archives/$deb
	dpkg-deb --fsys-tarfile "$deb" | tar --extract --keep-directory-symlink --no-same-owner --directory="$root"
	describe "$deb"
done
touch "$dir/complete"
