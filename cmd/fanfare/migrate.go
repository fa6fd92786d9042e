package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/metallb"
)

// migrateCommand has a command for each implementation whose objects can be converted.
func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Convert the objects of another implementation",
		Args:  cobra.NoArgs,
		// Without it, an implementation that is not known would get the help, and status 0.
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(migrateMetalLBCommand())
	return cmd
}

// A migrateFlags value holds the flags of `fanfare migrate metallb`.
type migrateFlags struct {
	files      []string // folders and files
	kubeconfig string
	label      string // KEY=VALUE
	class      string
	timeout    time.Duration
}

// migrateMetalLBCommand prints, and changes nothing: what it prints is for review and kubectl apply.
func migrateMetalLBCommand() *cobra.Command {
	var flags migrateFlags
	cmd := &cobra.Command{
		Use:   "metallb",
		Short: "Convert MetalLB's objects, and compare what each node announces",
		Long: `Convert MetalLB's objects to Fanfare's, and compare what each node announces
before and after.

It prints YAML for kubectl apply. Comments say what was not read, what has no
counterpart, what remains to be done, and which announcements differ. It exits
with status 1 if anything was not read, has no counterpart or differs. It exits with
status 1, too, if there is no object of MetalLB. It only reads. From files it needs MetalLB's objects and, for the comparison, Services
with their status, Nodes, Namespaces and EndpointSlices.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), flags.timeout)
			defer cancel()
			o, err := flags.options()
			if err != nil {
				return err
			}
			in, err := flags.read(ctx)
			if err != nil {
				return err
			}
			if err := in.NothingToConvert(); err != nil {
				return err
			}
			// The report is printed even if something is missing in it, and the error comes after:
			// people read the one, and scripts the other.
			out := metallb.Convert(in, o)
			difference := metallb.Compare(in, out, o)
			report, err := metallb.Report(in, out, difference)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprint(cmd.OutOrStdout(), report); err != nil {
				return err
			}
			return unfinished(in, out, difference)
		},
	}
	cmd.Flags().StringSliceVar(&flags.files, "files", nil,
		"folders and files of YAML or JSON with the cluster's objects, instead of an API server")
	addKubeconfig(cmd.Flags(), &flags.kubeconfig)
	cmd.Flags().StringVar(&flags.label, "node-label", "",
		"KEY=VALUE, a label that nodes get one after the other: converted objects announce from nodes with it "+
			"only; empty: from all")
	cmd.Flags().StringVar(&flags.class, "lb-class", "",
		"the loadBalancerClass that MetalLB serves (its --lb-class); empty: Services without one")
	cmd.Flags().DurationVar(&flags.timeout, "timeout", time.Minute, "how long to wait for the API server")
	return cmd
}

// unfinished returns an error that a script notices, if the conversion is not the same as before.
func unfinished(in *metallb.Cluster, out *metallb.Conversion, d *metallb.Comparison) error {
	lost := len(out.Lost())
	if len(in.Problems)+lost+len(d.Problems)+d.Differences() == 0 {
		return nil
	}
	return fmt.Errorf("%d not read, %d without counterpart, %d invalid, %d differences: the comments of "+
		"the output name them", len(in.Problems), lost, len(d.Problems), d.Differences())
}

// options checks the flags.
func (f *migrateFlags) options() (o metallb.Options, err error) {
	// Objects of both could be of two clusters, and the comparison would mix them.
	if len(f.files) > 0 && f.kubeconfig != "" {
		return o, errors.New("--files and --kubeconfig: give one of them")
	}
	o.Class = f.class
	if f.label == "" {
		return o, nil
	}
	// An empty value is valid for a label, and a missing "=" is more likely a mistake.
	var ok bool
	o.NodeLabel, o.NodeValue, ok = strings.Cut(f.label, "=")
	if !ok || len(validation.IsQualifiedName(o.NodeLabel)) != 0 || len(validation.IsValidLabelValue(o.NodeValue)) != 0 {
		return o, fmt.Errorf("--node-label %q: want a label and its value, such as example.com/announcer=fanfare",
			f.label)
	}
	return o, nil
}

// read reads the cluster's objects.
func (f *migrateFlags) read(ctx context.Context) (*metallb.Cluster, error) {
	in := &metallb.Cluster{}
	if len(f.files) > 0 {
		for _, path := range f.files {
			if err := readFiles(in, path); err != nil {
				return nil, fmt.Errorf("--files: %w", err)
			}
		}
		return in, nil
	}
	config, err := apiConfig(f.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("no --files, and no API server: %w", err)
	}
	return in, readAPI(ctx, in, config)
}

// manifestEndings are the endings of file names that are read in a folder.
var manifestEndings = []string{".yaml", ".yml", ".json"}

// readFiles reads a file, or the manifests in a folder and below it, as in a Git repository. A file
// that is named counts whatever its ending.
func readFiles(in *metallb.Cluster, path string) error {
	return filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name != path && !slices.Contains(manifestEndings, filepath.Ext(name)) {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		in.Read(name, text)
		return nil
	})
}

// resources are the lists of the API server that a migration reads, in the newest of the given versions that it has: it
// would convert BGPPeers to the older one, which has fewer fields. AddressPools are of MetalLB 0.12, which cannot
// be converted, and must not be overlooked. Secrets are not among them: passwords must not get into the
// output, and the command runs without the right to read them.
var resources = [][]string{
	{"/apis/metallb.io/v1beta1/ipaddresspools"},
	{"/apis/metallb.io/v1beta1/addresspools"},
	{"/apis/metallb.io/v1beta1/bgpadvertisements"},
	{"/apis/metallb.io/v1beta1/l2advertisements"},
	{"/apis/metallb.io/v1beta1/bfdprofiles"},
	{"/apis/metallb.io/v1beta1/communities"},
	{"/apis/frrk8s.metallb.io/v1beta1/frrconfigurations"},
	{"/api/v1/services"},
	{"/api/v1/nodes"},
	{"/api/v1/namespaces"},
	{"/api/v1/configmaps?fieldSelector=metadata.name%3Dbgpextras"},
	{"/api/v1/configmaps?fieldSelector=metadata.name%3Dconfig"},
	{"/apis/discovery.k8s.io/v1/endpointslices"},
	{"/apis/metallb.io/v1beta2/bgppeers", "/apis/metallb.io/v1beta1/bgppeers"},
}

// readAPI reads the lists as text: the decoder must see fields that no type has.
func readAPI(ctx context.Context, in *metallb.Cluster, config *rest.Config) error {
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return err
	}
	for _, versions := range resources {
		for _, path := range versions {
			text, err := client.Get().RequestURI(path).SetHeader("Accept", "application/json").DoRaw(ctx)
			// Some versions of MetalLB do not have all of its lists.
			if apierrors.IsNotFound(err) && strings.Contains(path, metallb.Group) {
				continue
			}
			if err != nil {
				return fmt.Errorf("GET %s: %w", path, err)
			}
			in.Read("the API server", text)
			break
		}
	}
	return nil
}
