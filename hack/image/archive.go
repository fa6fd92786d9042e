package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

type image = v1.Image

// assemble makes an image of layers, the last of which is on top.
func assemble(o options, arch string, trees ...tree) (image, error) {
	oci := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(oci, &v1.ConfigFile{
		Architecture: arch,
		OS:           "linux",
		RootFS:       v1.RootFS{Type: "layers"},
		Config:       config(o),
	})
	if err != nil {
		return nil, err
	}
	for _, t := range trees {
		if img, err = withLayer(img, t); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// config is how a container of the image runs by default: without privileges. The speaker's
// manifest adds the ones it needs.
func config(o options) v1.Config {
	return v1.Config{
		Entrypoint: []string{"/usr/bin/fanfare"},
		Env:        []string{"PATH=/usr/sbin:/usr/bin"},
		User:       "65532:65532",
		WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title": "fanfare",
			"org.opencontainers.image.description": "Addresses for LoadBalancer Services of Kubernetes: " +
				"announced once they work",
			"org.opencontainers.image.source":   "https://github.com/fanfare-lb/fanfare",
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.revision": o.revision,
		},
	}
}

func withLayer(img image, t tree) (image, error) {
	content, err := t.tar()
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, layer)
}

// writeArchive writes the format of `docker save`. The library's own writer puts
// an image's tags in an order that changes from run to run.
func writeArchive(w io.Writer, img image, tags []string) error {
	d, blobs, err := describe(img)
	if err != nil {
		return err
	}
	d.RepoTags = tags
	manifest, err := json.Marshal(tarball.Manifest{d})
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	for _, b := range append(blobs, blob{"manifest.json", manifest}) {
		h := tar.Header{Name: b.name, Mode: 0o644, Size: int64(len(b.content)), Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(&h); err != nil {
			return err
		}
		if _, err := archive.Write(b.content); err != nil {
			return err
		}
	}
	return archive.Close()
}

type blob struct {
	name    string
	content []byte
}

// describe names the parts of an image in an archive.
func describe(img image) (tarball.Descriptor, []blob, error) {
	var d tarball.Descriptor
	name, err := img.ConfigName()
	if err != nil {
		return d, nil, err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return d, nil, err
	}
	d.Config = name.Hex + ".json"
	blobs := []blob{{d.Config, config}}
	layers, err := img.Layers()
	if err != nil {
		return d, nil, err
	}
	for _, l := range layers {
		b, err := layerBlob(l)
		if err != nil {
			return d, nil, err
		}
		d.Layers = append(d.Layers, b.name)
		blobs = append(blobs, b)
	}
	return d, blobs, nil
}

func layerBlob(l v1.Layer) (blob, error) {
	digest, err := l.Digest()
	if err != nil {
		return blob{}, err
	}
	r, err := l.Compressed()
	if err != nil {
		return blob{}, err
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	return blob{digest.Hex + ".tar.gz", content}, err
}
