package main

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"
)

// newerDir is where proxy/nftables looks for the newer nft, its loader and its libraries. The loader of the other
// programs does not look there.
const newerDir = "usr/lib/fanfare/nft/"

// newerNFT adds the nft of a newer Debian to a layer, with its own loader and libraries: it can read tables that
// a newer nft has written, which the other nft cannot. It returns the packages that the files are of. They are
// described under other names than those of the same packages of the other release.
func (s system) newerNFT(ctx context.Context, t tree) ([]debianPackage, error) {
	libraries, err := s.libraries([]string{"/usr/sbin/nft"})
	if err != nil {
		return nil, err
	}
	var real []string
	for _, name := range append(libraries, "/usr/sbin/nft") {
		from, err := s.take(tree{}, name)
		if err != nil {
			return nil, err
		}
		real = append(real, from)
		if err := t.copy(newerDir+nameInNewer(name), s.at(from)); err != nil {
			return nil, err
		}
	}
	packages, err := s.owners(ctx, real)
	if err != nil {
		return nil, err
	}
	var described []debianPackage
	about := tree{}
	for _, p := range slices.Sorted(maps.Keys(packages)) {
		one, err := s.document(ctx, about, p)
		if err != nil {
			return nil, err
		}
		if err := s.verify(ctx, p, packages[p]); err != nil {
			return nil, err
		}
		described = append(described, one)
	}
	err = s.commonLicenses(about)
	for name, f := range about {
		if strings.HasPrefix(name, "var/lib/dpkg/status.d/") {
			name += "-newer"
		} else if doc, is := strings.CutPrefix(name, "usr/share/doc/"); is {
			name = "usr/share/doc/" + path.Dir(doc) + "-newer/" + path.Base(doc)
		}
		t[name] = f
	}
	return described, err
}

// nameInNewer is the name of a file in newerDir: the loader is called the same for all architectures.
func nameInNewer(name string) string {
	if base := path.Base(name); !strings.HasPrefix(base, "ld-linux") {
		return base
	}
	return "ld.so"
}
