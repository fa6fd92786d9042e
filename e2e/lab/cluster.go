package lab

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// A Cluster is the set of objects that all speakers of the lab read.
type Cluster struct{ Store }

// A Store holds objects by the name of the file that they came in.
type Store interface {
	// PutText applies the objects of a file. It deletes objects of an earlier file of that
	// name that are not in this one.
	PutText(name, text string) error
	// Delete removes a file's objects. The error is fs.ErrNotExist if there is no such file.
	Delete(name string) error
	// SpeakerArgs returns the flags that name the source of objects to a node's speaker.
	SpeakerArgs(node string) []string
}

// A folder is a Store in a folder of YAML.
type folder struct {
	dir   string // speakers read this folder
	draft string // where files are written before the rename
}

func newFolder(dir string) (*folder, error) {
	f := &folder{dir: dir, draft: dir + ".draft"}
	return f, errors.Join(os.Mkdir(f.dir, 0o755), os.Mkdir(f.draft, 0o755))
}

// PutText writes the file elsewhere and renames it, so that speakers never see half a file.
func (f *folder) PutText(name, text string) error {
	draft := filepath.Join(f.draft, name+".yaml")
	if err := os.WriteFile(draft, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(draft, filepath.Join(f.dir, name+".yaml"))
}

func (f *folder) Delete(name string) error { return os.Remove(filepath.Join(f.dir, name+".yaml")) }

func (f *folder) SpeakerArgs(string) []string { return []string{"--files", f.dir} }

func (c *Cluster) restore(base string) error {
	files, err := filepath.Glob(filepath.Join(base, "*.yaml"))
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if err := c.PutText(strings.TrimSuffix(filepath.Base(f), ".yaml"), string(text)); err != nil {
			return err
		}
	}
	return nil
}

// Announce sets spec.announce of the pool in a folder of objects, such as that of the lab,
// to BGP, L2 or Advertised.
func (c *Cluster) Announce(objects, how string) error {
	text, err := os.ReadFile(filepath.Join(objects, "pool.yaml"))
	if err != nil {
		return err
	}
	return c.PutText("pool", announceField.ReplaceAllString(string(text), "announce: "+how))
}

var announceField = regexp.MustCompile(`(?m)announce: \w+$`)

// Put writes Services with their EndpointSlices into one file, named after the first
// Service.
func (c *Cluster) Put(services ...Service) error {
	var docs [][]byte
	for _, s := range services {
		for _, object := range s.objects() {
			doc, err := yaml.Marshal(object)
			if err != nil {
				return fmt.Errorf("service %s: %w", s.Name, err)
			}
			docs = append(docs, doc)
		}
	}
	return c.PutText(services[0].Name, string(bytes.Join(docs, []byte("---\n"))))
}

// A Service is a LoadBalancer Service in namespace shop, with port 80 for web and port 7
// for echo over TCP and UDP.
type Service struct {
	Name      string
	Policy    corev1.ServiceExternalTrafficPolicy // empty: Cluster
	Ask       []netip.Addr                        // requested addresses
	Families  []corev1.IPFamily                   // empty: IPv4
	Endpoints []Endpoint

	Port uint16 // of web, without an echo port; 0: both default ports
	DNS  bool   // port 53 over UDP and TCP, without the default ports

	Affinity     corev1.ServiceAffinity // empty: None
	SourceRanges []string               // of clients; empty: all

	Annotations map[string]string // in addition to the one for Ask
}

// dnsPort is the port of DNS servers in pods, and of Services for them.
const dnsPort = 53

// An Endpoint is a pod of a Service and its state.
type Endpoint struct {
	Pod   string
	State EndpointState
}

// EndpointState is the state of a pod in its life cycle.
type EndpointState int

const (
	Ready       EndpointState = iota
	Terminating               // stopping, still serving
)

func (e Endpoint) String() string {
	if e.State == Terminating {
		return e.Pod + " terminating"
	}
	return e.Pod
}

// At returns ready endpoints for pods.
func At(pods ...string) []Endpoint {
	var all []Endpoint
	for _, p := range pods {
		all = append(all, Endpoint{Pod: p})
	}
	return all
}

func (s Service) families() []corev1.IPFamily {
	if len(s.Families) == 0 {
		return []corev1.IPFamily{corev1.IPv4Protocol}
	}
	return s.Families
}

func (s Service) objects() []any {
	objects := []any{s.service()}
	for _, f := range s.families() {
		objects = append(objects, s.slice(f))
	}
	return objects
}

func (s Service) service() *corev1.Service {
	policy := corev1.IPFamilyPolicySingleStack
	if len(s.families()) == 2 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	traffic := s.Policy
	if traffic == "" {
		traffic = corev1.ServiceExternalTrafficPolicyCluster
	}
	o := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: s.Name, Annotations: maps.Clone(s.Annotations)},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeLoadBalancer,
			ExternalTrafficPolicy: traffic,
			IPFamilies:            s.families(),
			IPFamilyPolicy:        &policy,
			Ports: []corev1.ServicePort{
				{Name: "web", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(WebPort)},
				{Name: "echo", Protocol: corev1.ProtocolTCP, Port: 7, TargetPort: intstr.FromInt32(EchoPort)},
				{Name: "echo-udp", Protocol: corev1.ProtocolUDP, Port: 7, TargetPort: intstr.FromInt32(EchoPort)},
			},
		},
	}
	o.Spec.SessionAffinity, o.Spec.LoadBalancerSourceRanges = s.Affinity, s.SourceRanges
	if s.Port != 0 {
		o.Spec.Ports = o.Spec.Ports[:1]
		o.Spec.Ports[0].Port = int32(s.Port)
	}
	if s.DNS {
		o.Spec.Ports = []corev1.ServicePort{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: dnsPort, TargetPort: intstr.FromInt32(dnsPort)},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: dnsPort, TargetPort: intstr.FromInt32(dnsPort)},
		}
	}
	if len(s.Ask) > 0 {
		var ask []string
		for _, a := range s.Ask {
			ask = append(ask, a.String())
		}
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, "fanfare.io/load-balancer-ips", strings.Join(ask, ","))
	}
	return o
}

func (s Service) slice(family corev1.IPFamily) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: s.Name + "-" + strings.ToLower(string(family)),
			Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
		},
		AddressType: discoveryv1.AddressType(family),
		Ports: []discoveryv1.EndpointPort{
			{Name: new("web"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(WebPort))},
			{Name: new("echo"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(EchoPort))},
			{Name: new("echo-udp"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(EchoPort))},
		},
	}
	if s.DNS {
		o.Ports = []discoveryv1.EndpointPort{
			{Name: new("dns"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(dnsPort))},
			{Name: new("dns-tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(dnsPort))},
		}
	}
	for _, e := range s.Endpoints {
		o.Endpoints = append(o.Endpoints, e.object(family))
	}
	return o
}

func (e Endpoint) object(family corev1.IPFamily) discoveryv1.Endpoint {
	terminating := e.State == Terminating
	return discoveryv1.Endpoint{
		Addresses: []string{PodAddr(e.Pod, family).String()},
		NodeName:  new(NodeOf(e.Pod)),
		Conditions: discoveryv1.EndpointConditions{
			Ready: new(!terminating), Serving: new(true), Terminating: &terminating,
		},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: e.Pod},
	}
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// PodAddr returns the address of a pod.
func PodAddr(pod string, family corev1.IPFamily) netip.Addr {
	node, number := pod[1:2], pod[1:]
	if family == corev1.IPv6Protocol {
		return netip.MustParseAddr("2001:db8:244:" + node + "::1" + number[1:])
	}
	return netip.MustParseAddr("10.244." + node + ".1" + number[1:])
}
