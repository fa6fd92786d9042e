package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
)

// A tree holds the files of a layer by their paths, which have no slash in front.
type tree map[string]file

// A file is a symbolic link, if it has a target, or an ordinary file.
type file struct {
	target  string
	content []byte
	mode    fs.FileMode // of an ordinary file, the permissions
}

func (t tree) text(name, content string) {
	t[name] = file{content: []byte(content), mode: 0o644}
}

// copy takes a file as the one called name. Of its permissions
// only the right to execute it counts: the others are the builder's umask.
func (t tree) copy(name, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	t[name] = file{content: content, mode: mode}
	return nil
}

// tar is the tree as a layer. It depends on the tree alone: sorted, of root, and
// without times.
func (t tree) tar() ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(t.withParents())) {
		if err := t.entry(w, name); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// withParents is the names in the tree and those of the directories they are in.
func (t tree) withParents() map[string]bool {
	names := map[string]bool{}
	for name := range t {
		for ; name != "."; name = path.Dir(name) {
			names[name] = true
		}
	}
	return names
}

func (t tree) entry(w *tar.Writer, name string) error {
	f, found := t[name]
	h := tar.Header{
		Name: name, Mode: int64(f.mode), Size: int64(len(f.content)), Typeflag: tar.TypeReg, Format: tar.FormatPAX,
	}
	switch {
	case !found:
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, name+"/", 0o755
	case f.target != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.target, 0o777
	}
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(f.content))
	return err
}
