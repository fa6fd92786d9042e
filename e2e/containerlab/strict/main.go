// Program strict reads containerlab files as `containerlab deploy` does: with its types, and
// refusing unknown fields. It prints each node's kind, image and command, so that a caller sees
// what was read, and fails for a file that containerlab would not deploy.
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/google/shlex"
	"github.com/srl-labs/containerlab/links"
	"github.com/srl-labs/containerlab/types"
	"gopkg.in/yaml.v2"
)

// A config is core.Config of containerlab, whose package imports every kind of router.
type config struct {
	Name     string          `yaml:"name"`
	Prefix   *string         `yaml:"prefix"`
	Mgmt     *types.MgmtNet  `yaml:"mgmt"`
	Settings *types.Settings `yaml:"settings"`
	Topology *types.Topology `yaml:"topology"`
}

func main() {
	var errs []error
	for _, path := range os.Args[1:] {
		if err := check(path); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var c config
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return err
	}
	if c.Name == "" || c.Topology == nil || len(c.Topology.Nodes) == 0 {
		return errors.New("name and topology.nodes: want both")
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Topology.Nodes)) {
		errs = append(errs, checkNode(c.Topology, name))
	}
	for i, l := range c.Topology.Links {
		if err := checkLink(c.Topology, l); err != nil {
			errs = append(errs, fmt.Errorf("topology.links[%d]: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// checkNode checks what containerlab needs to create a container. The kind linux has no image of
// its own.
func checkNode(t *types.Topology, name string) error {
	kind, image, cmd := t.GetNodeKind(name), t.GetNodeImage(name), t.GetNodeCmd(name)
	words, err := shlex.Split(cmd)
	if err != nil {
		return fmt.Errorf("topology.nodes.%s.cmd %q: %w", name, cmd, err)
	}
	if kind == "" || image == "" {
		return fmt.Errorf("topology.nodes.%s: kind %q, image %q: want both", name, kind, image)
	}
	if _, err := t.GetNodeBinds(name); err != nil {
		return fmt.Errorf("topology.nodes.%s.binds: %w", name, err)
	}
	fmt.Printf("%s kind=%s image=%s cmd=%q\n", name, kind, image, words)
	return nil
}

// checkLink checks the ends of a link in the short form, the only one that the laboratory uses.
func checkLink(t *types.Topology, l *links.LinkDefinition) error {
	brief, ok := l.Link.(*links.LinkVEthRaw)
	if !ok {
		return fmt.Errorf("type %T: want two endpoints", l.Link)
	}
	for _, e := range brief.Endpoints {
		if t.Nodes[e.Node] == nil {
			return fmt.Errorf("endpoint %s:%s: there is no such node", e.Node, e.Iface)
		}
	}
	return nil
}
