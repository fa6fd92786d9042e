package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/fanfare-lb/fanfare/proxy/fastpath"
)

// A fastPathFlags value holds the flags of the fast path, which bypasses netfilter.
type fastPathFlags struct {
	on         bool
	interfaces []string // by which external clients arrive; empty: detected
	dir        string   // of a BPF file system
}

// add defines the flags. The manifests of the fast path set them.
func (f *fastPathFlags) add(set *pflag.FlagSet) {
	set.BoolVar(&f.on, "fast-path", false,
		"let flows of external clients to pods of this node bypass netfilter, and so NetworkPolicies and firewalls "+
			"made of its rules; see docs/fast-path.md")
	set.StringSliceVar(&f.interfaces, "fast-path-interface", nil,
		"interface by which external clients arrive, may be repeated; default: those of the default routes and of "+
			"the Node's InternalIPs")
	addFastPathDir(set, &f.dir)
}

// addFastPathDir defines a flag of two commands: the speaker, which fills the folder, and cleanup,
// which removes it. With another value cleanup would leave the programs attached.
func addFastPathDir(set *pflag.FlagSet, dir *string) {
	set.StringVar(dir, "fast-path-dir", fastpath.DefaultDir,
		"folder of a BPF file system that keeps the fast path while no speaker runs")
}

// check returns the first invalid flag. It does not require that a named interface exists: it
// may appear later. A name must be possible, by length and without a slash, as in the kernel's
// dev_valid_name.
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

// maxIfname is the maximum length of an interface's name: IFNAMSIZ without the zero byte.
const maxIfname = 15
