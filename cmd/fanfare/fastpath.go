package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/fanfare-lb/fanfare/proxy/fastpath"
)

// A fastPathFlags value holds the flags of the way past netfilter.
type fastPathFlags struct {
	on         bool
	interfaces []string // by which external clients arrive; empty: detected
	dir        string   // of a BPF file system
}

// add defines the flags. The manifests of the fast path set them.
func (f *fastPathFlags) add(set *pflag.FlagSet) {
	set.BoolVar(&f.on, "fast-path", false,
		"let flows of external clients to pods of this node bypass netfilter, and so NetworkPolicies and firewalls made of its rules; see docs/fast-path.md")
	set.StringSliceVar(&f.interfaces, "fast-path-interface", nil,
		"interface by which external clients arrive, may be repeated; default: those of the default routes and of the Node's InternalIPs")
	addFastPathDir(set, &f.dir)
}

// addFastPathDir is for the speaker, which fills the folder, and for cleanup.
func addFastPathDir(set *pflag.FlagSet, dir *string) {
	set.StringVar(dir, "fast-path-dir", fastpath.DefaultDir, "folder of a BPF file system that keeps the fast path while no speaker runs")
}

// check does not require that a named interface exists: it may appear later.
func (f *fastPathFlags) check() error {
	if len(f.interfaces) > 0 && !f.on {
		return errors.New("--fast-path-interface: needs --fast-path")
	}
	for _, name := range f.interfaces {
		if name == "" || len(name) > maxIfname || filepath.Base(name) != name {
			return fmt.Errorf("--fast-path-interface %q: want the name of an interface, such as eth0", name)
		}
	}
	if !filepath.IsAbs(f.dir) {
		return fmt.Errorf("--fast-path-dir %q: want an absolute path, such as %s", f.dir, fastpath.DefaultDir)
	}
	return nil
}

// maxIfname is the length of the longest name of an interface (IFNAMSIZ).
const maxIfname = 15
