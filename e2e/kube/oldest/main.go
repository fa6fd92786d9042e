// Command oldest contains, in one binary, etcd and the programs of the oldest Kubernetes that works
// with Fanfare, as far as `make oldest-test` runs them. Its first argument names the program.
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
)

var programs = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          run(apiserver.NewAPIServerCommand),
	"kube-controller-manager": run(controllermanager.NewControllerManagerCommand),
	"kube-proxy":              run(proxy.NewProxyCommand),
	"kubectl":                 run(kubectl.NewDefaultKubectlCommand),
}

// run creates only the selected command, because some commands change global state.
func run(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

func main() {
	os.Args = os.Args[1:]
	if len(os.Args) > 0 {
		if program, ok := programs[os.Args[0]]; ok {
			os.Exit(program())
		}
	}
	fmt.Fprintln(os.Stderr, "name one of", strings.Join(slices.Sorted(maps.Keys(programs)), ", "))
	os.Exit(2)
}
