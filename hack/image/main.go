// Command image makes Fanfare's container image out of a static binary and of
// what this machine has installed from Debian: nft and both iptables. It asks no
// registry and no daemon, and runs for the architecture of the machine.
//
//	image -binary FILE -version V -o FILE.tar
//
// What it writes can be loaded by docker, podman and containerd. The same input
// gives the same file, bit by bit.
//
// The module is one of its own because nothing else uses its libraries.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", "", "the static fanfare to put in")
	flag.StringVar(&o.license, "license", "", "the license of fanfare")
	flag.StringVar(&o.version, "version", "", "the image's tag, beside latest")
	flag.StringVar(&o.revision, "revision", "", "the commit that the binary is of")
	flag.StringVar(&o.output, "o", "", "the file to write")
	flag.Parse()
	if err := build(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

type options struct {
	binary, license, version, revision, output string
}

// validTag is what the OCI distribution specification allows for a tag.
var validTag = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)

func build(ctx context.Context, o options) error {
	if o.binary == "" || o.license == "" || o.output == "" {
		return errors.New("-binary, -license and -o: want all of them")
	}
	if !validTag.MatchString(o.version) {
		return fmt.Errorf("-version %q: cannot be a tag", o.version)
	}
	base, packages, err := debian(ctx)
	if err != nil {
		return err
	}
	ours, err := fanfare(ctx, o)
	if err != nil {
		return err
	}
	img, err := assemble(o, base, ours)
	if err != nil {
		return err
	}
	if err := save(o.output, img, "fanfare:latest", "fanfare:"+o.version); err != nil {
		return err
	}
	return report(o.output, img, packages)
}

// fanfare is the layer that changes with every build.
func fanfare(ctx context.Context, o options) (tree, error) {
	t := tree{}
	if err := t.copy("usr/bin/fanfare", o.binary); err != nil {
		return nil, err
	}
	if err := t.copy("usr/share/doc/fanfare/copyright", o.license); err != nil {
		return nil, err
	}
	return t, licenses(ctx, t, o.binary)
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

func report(output string, img image, packages []string) error {
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
		fmt.Println("  with", p)
	}
	return nil
}
