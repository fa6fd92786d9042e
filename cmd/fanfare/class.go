package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A classFlags value holds the flags that select Services by spec.loadBalancerClass. The
// controller and all speakers must agree on them.
type classFlags struct {
	class string
	only  bool // ignore Services without a class
}

func (f *classFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.class, "load-balancer-class", cluster.DefaultClass, "serve Services with this loadBalancerClass, and Services without one; the controller and all speakers need the same")
	set.BoolVar(&f.only, "class-only", false, "leave Services without a loadBalancerClass to other implementations")
}

// check refuses a class that the API server refuses in a Service, which would have no effect.
func (f *classFlags) check() error {
	if reasons := validation.IsQualifiedName(f.class); len(reasons) != 0 {
		return fmt.Errorf("--load-balancer-class %q: want a class such as %s: %s", f.class, cluster.DefaultClass, strings.Join(reasons, "; "))
	}
	return nil
}
