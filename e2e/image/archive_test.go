package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// An archive is an image as `docker save` and `make image` write it.
type archive struct {
	Tags   []string
	Config config
	layers [][]byte
}

// A config is the tested part of an image's configuration.
type config struct {
	Architecture, OS string
	Config           struct {
		User            string
		Env, Entrypoint []string
		Labels          map[string]string
	}
}

func readArchive(name string) (*archive, error) {
	files, err := readTar(name)
	if err != nil {
		return nil, err
	}
	var images []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(files["manifest.json"], &images); err != nil {
		return nil, err
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("%d images", len(images))
	}
	a := archive{Tags: images[0].RepoTags}
	if err := json.Unmarshal(files[images[0].Config], &a.Config); err != nil {
		return nil, err
	}
	for _, l := range images[0].Layers {
		a.layers = append(a.layers, files[l])
	}
	return &a, nil
}

func readTar(name string) (map[string][]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
}

// unpack creates the root directory of a container.
func (a *archive) unpack(dir string) error {
	for _, l := range a.layers {
		z, err := gzip.NewReader(bytes.NewReader(l))
		if err != nil {
			return err
		}
		for r := tar.NewReader(z); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil {
				err = place(filepath.Join(dir, h.Name), h, r)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// place creates one entry of a layer. The layers need no other types.
func place(name string, h *tar.Header, content io.Reader) error {
	if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 {
		return fmt.Errorf("%s: owner %d:%d, time %s; want root and no time", h.Name, h.Uid, h.Gid, h.ModTime)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := os.Mkdir(name, h.FileInfo().Mode()); !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	case tar.TypeSymlink:
		return os.Symlink(h.Linkname, name)
	case tar.TypeReg:
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, h.FileInfo().Mode())
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		return errors.Join(err, f.Close())
	default:
		return fmt.Errorf("%s: unexpected type %q", h.Name, h.Typeflag)
	}
}
