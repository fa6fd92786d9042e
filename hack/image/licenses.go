package main

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/module"
)

// notice matches the names of files that must go with a program made of a
// module's code.
var notice = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// A goModule is a module that a program is made of; "std" is Go's own library.
type goModule struct {
	path, version, license string
}

// licenses puts in those of all the Go modules that a binary is made of, and Go's
// own, whose runtime is in every program.
func licenses(ctx context.Context, t tree, binary string) ([]goModule, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	env, err := output(ctx, "go", "env", "GOMODCACHE", "GOROOT")
	if err != nil {
		return nil, err
	}
	cache, root, _ := strings.Cut(strings.TrimSpace(env), "\n")
	std, err := t.module("std", strings.TrimPrefix(info.GoVersion, "go"), root)
	if err != nil {
		return nil, err
	}
	modules := []goModule{std}
	for _, dep := range info.Deps {
		m := cmp.Or(dep.Replace, dep)
		dir, err := module.EscapePath(m.Path)
		if err != nil {
			return nil, err
		}
		made, err := t.module(m.Path, m.Version, filepath.Join(cache, dir+"@"+m.Version))
		if err != nil {
			return nil, err
		}
		modules = append(modules, made)
	}
	return modules, nil
}

// module takes over the notices of a module, whose code is in dir.
func (t tree) module(name, version, dir string) (goModule, error) {
	place := "usr/share/doc/fanfare/go/" + name
	if err := t.notices(place, dir); err != nil {
		return goModule{}, err
	}
	return goModule{name, version, t.goLicense(place)}, nil
}

// notices takes over the notices in a directory and below it, where code that
// was copied from elsewhere has its own.
func (t tree) notices(place, dir string) error {
	found := false
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || name == filepath.Join(dir, "vendor")) {
			return fs.SkipDir
		}
		if d.IsDir() || !notice.MatchString(d.Name()) {
			return nil
		}
		found = true
		below, err := filepath.Rel(dir, name)
		return errors.Join(err, t.copy(filepath.Join(place, below), name))
	})
	if err == nil && !found {
		return fmt.Errorf("%s: no license", dir)
	}
	return err
}
