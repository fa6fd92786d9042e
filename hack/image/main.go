// Command image makes Fanfare's container image out of a static binary and of Debian's nft and
// both iptables. It asks no registry and no daemon.
//
//	image -binary FILE -newer DIR/ARCH -version V -o FILE.tar
//
// writes an image for this machine, with the files that it has installed, in the format of
// `docker save`.
//
//	image -binary DIR/fanfare-linux-ARCH -debian DIR/ARCH -newer DIR/ARCH -arch amd64,arm64 -version V -index FILE.tar
//
// writes an OCI image index, with an image for each architecture, of what debian.sh has unpacked:
// ARCH stands for each of them. -newer is what debian.sh has unpacked of a newer release: its nft. -sbom writes, too,
// what is in the images, as SPDX.
//
// The same input gives the same files, bit by bit. The module is one of its own because nothing
// else uses its libraries.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", "", "the static fanfare to put in")
	flag.StringVar(&o.license, "license", "", "the license of fanfare")
	flag.StringVar(&o.version, "version", "", "the image's tag, beside latest")
	flag.StringVar(&o.revision, "revision", "", "the commit that the binary is of")
	flag.StringVar(&o.output, "o", "", "the file to write: an image for `docker load`")
	flag.StringVar(&o.index, "index", "", "the file to write: an OCI layout with an image for each architecture")
	flag.StringVar(&o.architectures, "arch", runtime.GOARCH, "architectures, separated by commas; one with -o")
	flag.StringVar(&o.debian, "debian", "", "directory that debian.sh has filled; empty: this machine's own files")
	flag.StringVar(&o.newer, "newer", "", "directory that debian.sh has filled with the nft of a newer Debian")
	flag.StringVar(&o.sbom, "sbom", "", "the file to write: what is in the images, as SPDX 2.3 in JSON")
	flag.StringVar(&o.name, "name", "fanfare", "the image's name in -index, with its registry")
	flag.Func("created", "the time of the release, as RFC 3339; for -sbom", func(s string) (err error) {
		o.created, err = time.Parse(time.RFC3339, s)
		return err
	})
	flag.Parse()
	if err := build(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

type options struct {
	binary, license, version, revision, output string
	architectures, debian, newer, index        string
	sbom, name                                 string

	created time.Time
}

// placeholder stands for an architecture in the paths of options.
const placeholder = "ARCH"

// validTag is what the OCI distribution specification allows for a tag.
var validTag = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)

func (o options) check() error {
	if o.binary == "" || o.license == "" || o.newer == "" || (o.output == "") == (o.index == "") {
		return errors.New("-binary, -license, -newer and one of -o and -index: want all of them")
	}
	if o.output != "" && strings.Contains(o.architectures, ",") {
		return fmt.Errorf("-arch %s: -o takes one architecture", o.architectures)
	}
	if !validTag.MatchString(o.version) {
		return fmt.Errorf("-version %q: cannot be a tag", o.version)
	}
	return nil
}

// system is the Debian of an architecture.
func (o options) system(arch string) (system, error) {
	switch {
	case triplets[arch] == "":
		return system{}, fmt.Errorf("-arch %q: want amd64 or arm64", arch)
	case o.debian != "":
		return unpacked(o.debian, arch), nil
	case arch != runtime.GOARCH:
		return system{}, fmt.Errorf("-arch %s: this machine is %s; give -debian", arch, runtime.GOARCH)
	}
	return system{"/", arch}, nil
}

// unpacked is what debian.sh has unpacked for an architecture.
func unpacked(dir, arch string) system {
	return system{filepath.Join(strings.ReplaceAll(dir, placeholder, arch), "root"), arch}
}

func build(ctx context.Context, o options) error {
	if err := o.check(); err != nil {
		return err
	}
	var contents []content
	var images []image
	for arch := range strings.SplitSeq(o.architectures, ",") {
		s, err := o.system(arch)
		if err != nil {
			return err
		}
		c, img, err := buildImage(ctx, o, s)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		contents, images = append(contents, c), append(images, img)
	}
	if o.sbom != "" {
		if err := writeSBOM(o, contents); err != nil {
			return err
		}
	}
	if o.index != "" {
		return writeIndex(o, images)
	}
	if err := save(o.output, images[0], "fanfare:latest", "fanfare:"+o.version); err != nil {
		return err
	}
	return report(o.output, images[0], contents[0].debian)
}

// buildImage makes the image of one architecture, and lists what is in it.
func buildImage(ctx context.Context, o options, s system) (c content, img image, err error) {
	o.binary = strings.ReplaceAll(o.binary, placeholder, s.arch)
	base, packages, err := s.debian(ctx)
	if err != nil {
		return c, nil, err
	}
	newer, err := unpacked(o.newer, s.arch).newerNFT(ctx, base)
	if err != nil {
		return c, nil, fmt.Errorf("-newer: %w", err)
	}
	packages = append(packages, newer...)
	ours, modules, err := fanfare(ctx, o)
	if err != nil {
		return c, nil, err
	}
	img, err = assemble(o, s.arch, base, ours)
	return content{s.arch, packages, modules}, img, err
}

// fanfare is the layer that changes with every build.
func fanfare(ctx context.Context, o options) (tree, []goModule, error) {
	t := tree{}
	if err := t.copy("usr/bin/fanfare", o.binary); err != nil {
		return nil, nil, err
	}
	if err := t.copy("usr/share/doc/fanfare/copyright", o.license); err != nil {
		return nil, nil, err
	}
	modules, err := licenses(ctx, t, o.binary)
	return t, modules, err
}

// save writes to a temporary file and renames it: a reader never sees half an image.
func save(output string, img image, tags ...string) error {
	f, err := os.CreateTemp(filepath.Dir(output), ".image-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = errors.Join(writeArchive(f, img, tags), f.Chmod(0o644), f.Close())
	if err != nil {
		return fmt.Errorf("%s: %w", output, err)
	}
	return os.Rename(f.Name(), output)
}

func report(output string, img image, packages []debianPackage) error {
	info, err := os.Stat(output)
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s: %.1f MB, %s\n", output, float64(info.Size())/1e6, digest)
	for _, p := range packages {
		fmt.Println("  with", p.name, p.version)
	}
	return nil
}
