package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A classFlags value holds the flags that select Services by loadBalancerClass. Controllers and
// speakers must agree about them.
type classFlags struct {
	only bool
	also []string
}

// add defines the flags.
func (f *classFlags) add(set *pflag.FlagSet) {
	set.BoolVar(&f.only, "class-only", false, "leave Services without a loadBalancerClass to other implementations")
	set.StringSliceVar(&f.also, "lb-class", nil,
		"a loadBalancerClass of Services to serve besides "+cluster.Class+", such as MetalLB's former one; repeatable")
}

// classes checks the flags. files is the folder that replaces an API server: Fanfare serves all Services of a
// folder.
func (f *classFlags) classes(files string) (cluster.Classes, error) {
	// A folder has no other implementation beside Fanfare, from which the flags could keep Services.
	switch i := slices.IndexFunc(f.also, func(c string) bool { return len(validation.IsQualifiedName(c)) != 0 }); {
	case files != "" && f.only:
		return cluster.Classes{}, errors.New(
			"--files and --class-only: give one of them; Fanfare serves all Services of a folder")
	case files != "" && len(f.also) > 0:
		return cluster.Classes{}, errors.New(
			"--files and --lb-class: give one of them; in a folder, change the Services' loadBalancerClass")
	case i >= 0:
		return cluster.Classes{}, fmt.Errorf("--lb-class %q: want a loadBalancerClass such as metallb.io/metallb",
			f.also[i])
	}
	return cluster.Classes{Only: f.only, Also: f.also}, nil
}
