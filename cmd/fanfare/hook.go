package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/manifests"
)

// hookCommand has what the Jobs of the Helm chart run: steps before and after those of Helm. They
// are in this program because the image has no shell and no kubectl, and so that each image brings
// the CRDs of its own version.
func hookCommand() *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{
		Use:   "hook",
		Short: "Run a step of the Helm chart's Jobs",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() }, // an unknown step is an error
	}
	addKubeconfig(cmd.PersistentFlags(), &kubeconfig)
	cmd.AddCommand(crdsHook(&kubeconfig), cleanedHook(&kubeconfig))
	return cmd
}

// crdsHook is for upgrades: Helm installs the CRDs of a chart, and never changes them.
func crdsHook(kubeconfig *string) *cobra.Command {
	return &cobra.Command{
		Use:   "crds",
		Short: "Give the API server the CRDs of this version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := hookClient(*kubeconfig)
			if err != nil {
				return err
			}
			return updateCRDs(cmd.Context(), c, cmd.OutOrStdout())
		},
	}
}

// cleanedHook is for removal: Helm does not wait for a DaemonSet that is a hook, and deletes it
// also if the hook that waits has failed.
func cleanedHook(kubeconfig *string) *cobra.Command {
	var (
		namespace string
		timeout   time.Duration
	)
	cmd := &cobra.Command{
		Use:   "cleaned DAEMONSET",
		Short: "Wait until a DaemonSet has cleaned all nodes, then delete it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := hookClient(*kubeconfig)
			if err != nil {
				return err
			}
			namespace = cmp.Or(namespace, ownNamespace())
			// Shorter than Helm's own timeout, which would not say which nodes are missing.
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if err := awaitCleaned(ctx, c, namespace, args[0]); err != nil {
				return err
			}
			// Only after success: otherwise the DaemonSet cleans a node that returns later.
			return c.Delete().AbsPath(daemonSets, namespace, "daemonsets", args[0]).Do(ctx).Error()
		},
	}
	cmd.Flags().StringVar(&namespace, "namespace", "", "namespace of the DaemonSet; default: the pod's")
	cmd.Flags().DurationVar(&timeout, "timeout", 4*time.Minute, "how long to wait")
	return cmd
}

// hookClient sends JSON by paths: the hooks need three kinds of requests. The typed clients would
// bring apiextensions with all its dependencies into the program of every node.
func hookClient(kubeconfig string) (rest.Interface, error) {
	config, err := apiConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	return rest.UnversionedRESTClientFor(config)
}

// updateCRDs creates the missing CRDs, and gives the existing ones the specs of this version. An
// apply would keep fields and rules that another manager, such as Helm, once applied.
func updateCRDs(ctx context.Context, c rest.Interface, log io.Writer) error {
	files, err := manifests.CRDs.ReadDir("crds")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := manifests.CRDs.ReadFile(path.Join("crds", f.Name()))
		if err != nil {
			return err
		}
		var want unstructured.Unstructured
		if err := yaml.Unmarshal(text, &want.Object); err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		done, err := updateCRD(ctx, c, &want)
		if err != nil {
			return fmt.Errorf("CRD %s: %w", want.GetName(), err)
		}
		fmt.Fprintln(log, "CRD", want.GetName(), done)
	}
	return nil
}

// updateCRD reads and writes until no other client has written between the two. The API server itself
// is such a client: it writes the conditions of a CRD just after its creation.
func updateCRD(ctx context.Context, c rest.Interface, want *unstructured.Unstructured) (done string, err error) {
	const all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	for {
		var live unstructured.Unstructured
		text, err := c.Get().AbsPath(all, want.GetName()).DoRaw(ctx)
		if err == nil {
			err = live.UnmarshalJSON(text)
		}
		switch {
		case apierrors.IsNotFound(err):
			if done, err = "created", send(ctx, c.Post().AbsPath(all), want); !apierrors.IsAlreadyExists(err) {
				return done, err
			}
		case err != nil:
			return "", err
		default:
			// Annotations and labels of others stay, such as Helm's or Argo CD's marks of ownership.
			annotations := map[string]string{}
			maps.Copy(annotations, live.GetAnnotations())
			maps.Copy(annotations, want.GetAnnotations())
			live.SetAnnotations(annotations)
			live.Object["spec"] = want.Object["spec"]
			if done, err = "updated", send(ctx, c.Put().AbsPath(all, want.GetName()),
				&live); !apierrors.IsConflict(err) {
				return done, err
			}
		}
	}
}

func send(ctx context.Context, r *rest.Request, o *unstructured.Unstructured) error {
	text, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	return r.SetHeader("Content-Type", runtime.ContentTypeJSON).Body(text).Do(ctx).Error()
}

// daemonSets is the API with DaemonSets of all namespaces.
const daemonSets = "/apis/apps/v1/namespaces"

// awaitCleaned returns when all nodes that a DaemonSet is for have a ready pod of it. An API server
// that does not answer is asked again. After the timeout, the error has the last reason in the place of
// "context deadline exceeded".
func awaitCleaned(ctx context.Context, c rest.Interface, namespace, name string) error {
	left := errors.New("the API server has not answered")
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		text, err := c.Get().AbsPath(daemonSets, namespace, "daemonsets", name).DoRaw(ctx)
		var d appsv1.DaemonSet
		if err == nil {
			err = yaml.Unmarshal(text, &d)
		}
		if left = err; err == nil {
			left = uncleaned(&d)
		}
		return left == nil, nil
	})
	if err != nil {
		return fmt.Errorf("DaemonSet %s/%s: %w; it stays, and cleans a node when that runs pods again; delete it "+
			"when all its pods are ready", namespace, name, left)
	}
	return nil
}

// uncleaned says how many nodes are not clean yet.
func uncleaned(d *appsv1.DaemonSet) error {
	switch s := d.Status; {
	// Until then all counts are 0, which would pass for a cluster without nodes.
	case s.ObservedGeneration < max(d.Generation, 1):
		return errors.New("no controller has counted its nodes yet")
	case s.NumberReady < s.DesiredNumberScheduled:
		return fmt.Errorf("%d of %d nodes are not clean", s.DesiredNumberScheduled-s.NumberReady,
			s.DesiredNumberScheduled)
	}
	return nil
}
