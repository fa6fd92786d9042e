package lab

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// A Topology is the part of a containerlab file that the lab uses.
type Topology struct {
	Name  string
	Nodes []Node // sorted by name
	Links []Link
}

// A Node is a network namespace.
type Node struct {
	Name    string
	Sysctls map[string]string
	Exec    [][]string        // commands, run in order after the links are up
	Binds   map[string]string // path in the container -> path here
}

// A Link is a veth pair.
type Link struct{ A, B Interface }

// An Interface is one end of a Link.
type Interface struct{ Node, Name string }

// The format of the file. Decoding is strict: the lab refuses an unknown field instead of
// behaving differently from containerlab.
type (
	clabFile struct {
		Name     string `json:"name"`
		Topology struct {
			Defaults clabNode            `json:"defaults"`
			Nodes    map[string]clabNode `json:"nodes"`
			Links    []struct {
				Endpoints []string `json:"endpoints"`
			} `json:"links"`
		} `json:"topology"`
	}
	clabNode struct {
		Kind            string            `json:"kind"`
		Image           string            `json:"image"`
		ImagePullPolicy string            `json:"image-pull-policy"`
		NetworkMode     string            `json:"network-mode"`
		Cmd             string            `json:"cmd"`
		Binds           []string          `json:"binds"`
		Sysctls         map[string]string `json:"sysctls"`
		Exec            []string          `json:"exec"`
	}
)

// ReadTopology reads a containerlab file.
func ReadTopology(path string) (*Topology, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t, err := parseTopology(text, filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// overlay adds the content of another file: nodes, links, and commands for existing nodes.
func (t *Topology) overlay(path string) error {
	o, err := ReadTopology(path)
	if err != nil {
		return err
	}
	for _, n := range o.Nodes {
		i := slices.IndexFunc(t.Nodes, func(have Node) bool { return have.Name == n.Name })
		if i < 0 {
			t.Nodes = append(t.Nodes, n)
			continue
		}
		maps.Copy(t.Nodes[i].Sysctls, n.Sysctls)
		maps.Copy(t.Nodes[i].Binds, n.Binds)
		t.Nodes[i].Exec = append(t.Nodes[i].Exec, n.Exec...)
	}
	t.Links = append(t.Links, o.Links...)
	slices.SortFunc(t.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// parseTopology parses the text of a file; paths in it are relative to dir.
func parseTopology(text []byte, dir string) (*Topology, error) {
	var f clabFile
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return nil, err
	}
	t := &Topology{Name: f.Name}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(f.Topology.Nodes)) {
		n, err := parseNode(name, f.Topology.Defaults, f.Topology.Nodes[name], dir)
		t.Nodes, errs = append(t.Nodes, n), append(errs, err)
	}
	for i, l := range f.Topology.Links {
		link, err := t.parseLink(l.Endpoints)
		if err != nil {
			err = fmt.Errorf("topology.links[%d]: %w", i, err)
		}
		t.Links, errs = append(t.Links, link), append(errs, err)
	}
	return t, errors.Join(errs...)
}

// parseNode merges a node with the defaults as containerlab does: sysctls by key, lists by
// appending.
func parseNode(name string, defaults, own clabNode, dir string) (Node, error) {
	n := Node{Name: name, Sysctls: map[string]string{}, Binds: map[string]string{}}
	if kind := own.Kind + defaults.Kind; kind != "linux" {
		return n, fmt.Errorf("topology.nodes.%s.kind %q: the lab supports only linux", name, kind)
	}
	maps.Copy(n.Sysctls, defaults.Sysctls)
	maps.Copy(n.Sysctls, own.Sysctls)
	for _, line := range append(slices.Clone(defaults.Exec), own.Exec...) {
		if strings.ContainsAny(line, `'"\`) {
			return n, fmt.Errorf("topology.nodes.%s.exec %q: the lab splits at blanks and supports no quotes", name,
				line)
		}
		n.Exec = append(n.Exec, strings.Fields(line))
	}
	for _, b := range append(slices.Clone(defaults.Binds), own.Binds...) {
		host, inside, ok := strings.Cut(b, ":")
		if !ok {
			return n, fmt.Errorf("topology.nodes.%s.binds %q: want HOST-PATH:CONTAINER-PATH", name, b)
		}
		inside, _, _ = strings.Cut(inside, ":")
		n.Binds[inside] = filepath.Join(dir, host)
	}
	return n, nil
}

func (t *Topology) parseLink(endpoints []string) (Link, error) {
	if len(endpoints) != 2 {
		return Link{}, fmt.Errorf("endpoints %q: want two", endpoints)
	}
	a, errA := t.parseInterface(endpoints[0])
	b, errB := t.parseInterface(endpoints[1])
	return Link{a, b}, errors.Join(errA, errB)
}

func (t *Topology) parseInterface(s string) (Interface, error) {
	node, iface, ok := strings.Cut(s, ":")
	if !ok || iface == "" || len(iface) > 15 {
		return Interface{}, fmt.Errorf("endpoint %q: want NODE:INTERFACE, the interface with at most 15 bytes", s)
	}
	if !slices.ContainsFunc(t.Nodes, func(n Node) bool { return n.Name == node }) {
		return Interface{}, fmt.Errorf("endpoint %q: there is no node %q", s, node)
	}
	return Interface{node, iface}, nil
}
