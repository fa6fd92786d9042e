package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A system is the Debian that an image has files of: this machine, with the root "/", or what
// debian.sh has unpacked for an architecture, none of whose programs need run here.
type system struct {
	root string
	arch string // as Go and Debian call it: amd64, arm64
}

// triplets name the directories of libraries, by architecture.
var triplets = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// at is the place on this machine of a path of the system.
func (s system) at(name string) string { return filepath.Join(s.root, name) }

// take takes over the file at an absolute path. Where the path leads through symbolic links, as
// on a system with one /usr, they are taken too, down to the file itself, whose path is returned.
func (s system) take(t tree, name string) (string, error) {
	dir, err := s.resolve(path.Dir(name))
	if err != nil {
		return "", err
	}
	name = path.Join(dir, path.Base(name))
	target, err := s.readlink(name)
	if err != nil {
		return "", err
	}
	if target == "" {
		return name, t.copy(name[1:], s.at(name))
	}
	t[name[1:]] = file{target: target}
	if !path.IsAbs(target) {
		target = path.Join(dir, target)
	}
	return s.take(t, target)
}

// resolve follows the symbolic links in a directory's path. Absolute ones begin at the system's
// root.
func (s system) resolve(dir string) (string, error) {
	done := "/"
	for _, part := range strings.Split(strings.Trim(dir, "/"), "/") {
		next := path.Join(done, part)
		target, err := s.readlink(next)
		if err != nil {
			return "", err
		}
		if target != "" && !path.IsAbs(target) {
			target = path.Join(done, target)
		}
		if target != "" {
			if next, err = s.resolve(target); err != nil {
				return "", err
			}
		}
		done = next
	}
	return done, nil
}

// readlink returns the target of a symbolic link, and nothing for another file.
func (s system) readlink(name string) (string, error) {
	info, err := os.Lstat(s.at(name))
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return "", err
	}
	return os.Readlink(s.at(name))
}

// libraries are the shared libraries that files are linked to, directly or not, and the loader.
// They are read from the files: ldd would run them.
func (s system) libraries(files []string) ([]string, error) {
	found := map[string]bool{}
	for queue := slices.Clone(files); len(queue) > 0; queue = queue[1:] {
		needed, err := s.needed(queue[0])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", queue[0], err)
		}
		for _, l := range needed {
			if !found[l] {
				found[l] = true
				queue = append(queue, l)
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// needed are the paths of what one file is linked to.
func (s system) needed(name string) (paths []string, err error) {
	real, err := s.take(tree{}, name)
	if err != nil {
		return nil, err
	}
	f, err := elf.Open(s.at(real))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if loader := f.Section(".interp"); loader != nil {
		text, err := loader.Data()
		if err != nil {
			return nil, err
		}
		paths = append(paths, strings.TrimRight(string(text), "\x00"))
	}
	names, err := f.ImportedLibraries()
	for _, n := range names {
		where, e := s.library(n)
		paths, err = append(paths, where), errors.Join(err, e)
	}
	return paths, err
}

// library finds a library in the directories that the loader looks into.
func (s system) library(name string) (string, error) {
	for _, dir := range []string{"/lib/", "/usr/lib/"} {
		p := path.Join(dir, triplets[s.arch], name)
		if _, err := os.Lstat(s.at(p)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("library %s: neither in /lib nor in /usr/lib of %s", name, s.arch)
}
