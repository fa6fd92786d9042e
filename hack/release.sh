#!/usr/bin/env bash
# Writes everything of a release to a directory, which it empties first. Nothing is published, and
# no registry is asked. The same commit gives the same files, as long as Debian's packages are the
# same: debian.sh loads them once, and the SBOM names their versions.
#
#   release.sh VERSION DIR
#
# REGISTRY is where a person will push the image.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 out=$(realpath -m "$2")
: "${REGISTRY:=ghcr.io/fanfare-lb/fanfare}" "${TAGS:=grpcnotrace}"
architectures=(amd64 arm64)
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || { echo "release.sh: VERSION=$version: want a version such as v1.2.3" >&2; exit 1; }
epoch=$(git log -1 --format=%ct)
rm -rf "$out"
mkdir -p "$out"

# The packages outlive a release, so that a second one has the same.
debian=${XDG_CACHE_HOME:-$HOME/.cache}/fanfare/debian
for arch in "${architectures[@]}"; do
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -tags="$TAGS" -buildvcs=false \
		-ldflags="-s -w -X main.release=$version" -o "$out/fanfare-linux-$arch" ./cmd/fanfare
	hack/image/debian.sh "$arch" "$debian/$arch"
	hack/image/debian.sh "$arch" "$debian/trixie-$arch" trixie nftables base-files
done

made=$(go -C hack/image run . -arch "$(IFS=,; echo "${architectures[*]}")" -binary "$out/fanfare-linux-ARCH" -debian "$debian/ARCH" -newer "$debian/trixie-ARCH" \
	-license "$PWD/LICENSE" -version "$version" -revision "$(git rev-parse HEAD)" -created "$(date --utc --date="@$epoch" +%FT%TZ)" \
	-name "$REGISTRY" -index "$out/fanfare-image.tar" -sbom "$out/fanfare.spdx.json")
echo "$made"
digest=${made##* }

# manifests, in the order of kustomization.yaml.
sed -n 's/^  - //p' manifests/kustomization.yaml | while read -r file; do
	[[ $(head -1 "manifests/$file") == --- ]] || echo ---
	sed "s|image: fanfare\$|image: $REGISTRY@$digest|" "manifests/$file"
done >"$out/install.yaml"
{ echo ---; sed "s|image: fanfare\$|image: $REGISTRY@$digest|" manifests/uninstall/cleanup.yaml; } >"$out/uninstall.yaml"

staging=$(mktemp -d)
trap 'rm -r "$staging"' EXIT
cp -r charts/fanfare "$staging"
sed -i "s|^version: .*|version: ${version#v}|; s|^appVersion: .*|appVersion: $version|" "$staging/fanfare/Chart.yaml"
sed -i "s|^  repository: .*|  repository: $REGISTRY|; s|^  digest: \"\"|  digest: $digest|" "$staging/fanfare/values.yaml"
tar --create --directory="$staging" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
	--format=ustar fanfare | gzip --no-name >"$out/fanfare-${version#v}.tgz"

# The section of this version, or what is not released yet.
section=${version#v}
grep -q "^## $section\$" CHANGELOG.md || section=Unreleased
awk -v section="## $section" '/^## /{on = $0 == section} on' CHANGELOG.md >"$out/CHANGELOG.md"

(cd "$out" && sha256sum -- * >SHA256SUMS)
ls -l "$out"
