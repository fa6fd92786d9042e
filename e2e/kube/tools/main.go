// Command tools contains etcd, the Kubernetes programs and Helm in one binary for tests. The
// eight programs share nearly all of their code, so one binary takes a third of the space
// and one link.
//
// It runs the program of the name by which it is called, such as through a link, or that
// its first argument names.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	helm "helm.sh/helm/v4/pkg/cmd"
	helmkube "helm.sh/helm/v4/pkg/kube"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          run(apiserver.NewAPIServerCommand),
	"kube-controller-manager": run(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              run(proxy.NewProxyCommand),
	"kubelet":                 run(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 run(kubectl.NewDefaultKubectlCommand),
	"helm":                    runHelm,
}

// run creates only the selected command, because some commands change global state.
func run(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

// runHelm is Helm's own main function.
func runHelm() int {
	helmkube.ManagedFieldsManager = "helm"
	cmd, err := helm.NewRootCmd(os.Stdout, os.Args[1:], helm.SetupLogging)
	if err == nil {
		err = cmd.Execute()
	}
	var exit helm.CommandError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode
	case err != nil:
		return 1
	}
	return 0
}

func main() {
	program, ok := programs[filepath.Base(os.Args[0])]
	if !ok && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		program, ok = programs[os.Args[0]]
	}
	if !ok {
		fmt.Fprintln(os.Stderr, "name one of", strings.Join(slices.Sorted(maps.Keys(programs)), ", "))
		os.Exit(2)
	}
	os.Exit(program())
}
