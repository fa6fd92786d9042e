package metallb

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	yamlstream "k8s.io/apimachinery/pkg/util/yaml"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Group is the API group of MetalLB's objects.
const Group = "metallb.io"

// frrGroup is the API group of FRR-K8s, which MetalLB configures and users may configure beside it.
const frrGroup = "frrk8s.metallb.io"

// A Cluster is what a migration reads: MetalLB's objects, and those of Kubernetes that decide what
// is announced. Each list is sorted by name.
type Cluster struct {
	Pools            []*IPAddressPool
	Peers            []*BGPPeer
	Advertisements   []*BGPAdvertisement
	L2Advertisements []*L2Advertisement
	BFDProfiles      []*BFDProfile
	Communities      []*Community

	Services       []*corev1.Service
	Nodes          []*corev1.Node
	Namespaces     []*corev1.Namespace
	EndpointSlices []*discoveryv1.EndpointSlice

	// Problems are what could not be read.
	Problems []cluster.Problem

	from       map[string]string // the source of each object, by kind and name
	namespaces sets.Set[string]  // of MetalLB's objects
	refused    bool              // an object of MetalLB was found that is not converted
}

// Read adds the objects of a text: YAML documents, JSON values, or lists of them, as kubectl get
// prints and the API server sends them. Source names the text in Problems. Objects of other kinds are
// ignored, so that a dump of the whole cluster can be read.
func (c *Cluster) Read(source string, text []byte) {
	r := yamlstream.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			doc, err = yaml.YAMLToJSONStrict(doc)
		}
		if err != nil {
			// Where the next document begins is not known after a syntax error: what follows
			// would be lost in silence.
			c.problem(cluster.Problem{Object: cluster.Key{Kind: source}, Message: "is not read: " + err.Error()})
			break
		}
		c.add(source, doc, schema.GroupVersionKind{})
	}
}

// A head is what all objects have, or the items of a list.
type head struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// add adds an object, or those of a list. Of is its type if it has none of its own, as in a list of
// the API server.
func (c *Cluster) add(source string, j []byte, of schema.GroupVersionKind) {
	if bytes.Equal(bytes.TrimSpace(j), []byte("null")) {
		return // a document of comments only
	}
	var h head
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(j, &h); err != nil {
		c.problem(cluster.Problem{
			Object: cluster.Key{Kind: source}, Message: "has a document that is no Kubernetes object: " + err.Error(),
		})
		return
	}
	gvk := h.GroupVersionKind()
	if gvk.Kind == "" { // the API server leaves out the type of a list's items
		gvk = of
	}
	if kind, ok := strings.CutSuffix(gvk.Kind, "List"); ok {
		for _, item := range h.Items {
			c.add(source, item, gvk.GroupVersion().WithKind(kind))
		}
		return
	}
	switch gvk.Group {
	case Group:
		c.addMetalLB(source, gvk, &h, j)
	case frrGroup:
		reader{c, source, gvk, &h, j}.refuseFRR()
	case corev1.GroupName, discoveryv1.GroupName:
		c.addKubernetes(source, gvk, &h, j)
	}
}

// addMetalLB adds an object of MetalLB. A kind or version that is not known here is a Problem: what
// it asks for would be lost.
func (c *Cluster) addMetalLB(source string, gvk schema.GroupVersionKind, h *head, j []byte) {
	r := reader{c, source, gvk, h, j}
	problems := len(c.Problems)
	defer func() { c.refused = c.refused || len(c.Problems) > problems }()
	switch gvk.GroupKind().Kind + " " + gvk.Version {
	case "IPAddressPool v1beta1":
		addObject(r, &c.Pools)
	case "BGPPeer v1beta2":
		addObject(r, &c.Peers)
	case "BGPPeer v1beta1":
		// Files may have it. The API server is asked for v1beta2, which it converts to.
		var old []*Object[bgpPeerV1beta1Spec]
		addObject(r, &old)
		for _, p := range old {
			insert(&c.Peers, &BGPPeer{TypeMeta: p.TypeMeta, ObjectMeta: p.ObjectMeta, Spec: p.Spec.current()})
		}
	case "BGPAdvertisement v1beta1":
		addObject(r, &c.Advertisements)
	case "L2Advertisement v1beta1":
		addObject(r, &c.L2Advertisements)
	case "BFDProfile v1beta1":
		addObject(r, &c.BFDProfiles)
	case "Community v1beta1":
		addObject(r, &c.Communities)
	case "ServiceL2Status v1beta1", "ServiceBGPStatus v1beta1", "ConfigurationState v1beta1":
		// Reports of MetalLB, which ask for nothing.
	default:
		r.problem("apiVersion", gvk.GroupVersion().String(),
			fmt.Sprintf("is no version of %s in MetalLB 0.16, so the object is not converted; convert it by hand",
				gvk.Kind))
	}
}

// addKubernetes adds an object of Kubernetes. The API server may have fields that this program
// does not know, so they are no Problem.
func (c *Cluster) addKubernetes(source string, gvk schema.GroupVersionKind, h *head, j []byte) {
	r := reader{c, source, gvk, h, j}
	switch gvk.Kind {
	case "Service":
		addLenient(r, &c.Services)
	case "Node":
		addLenient(r, &c.Nodes)
	case "Namespace":
		addLenient(r, &c.Namespaces)
	case "EndpointSlice":
		addLenient(r, &c.EndpointSlices)
	case "ConfigMap":
		r.refuseFRR()
		r.refuseConfigMap()
	}
}

// NothingToConvert returns an error if no object of MetalLB was found. Nodes and Services alone say nothing about
// MetalLB, so that a comparison would find no difference.
func (c *Cluster) NothingToConvert() error {
	n := len(c.Pools) + len(c.Peers) + len(c.Advertisements) + len(c.L2Advertisements) + len(c.BFDProfiles) +
		len(c.Communities)
	if n > 0 || c.refused {
		return nil
	}
	err := fmt.Errorf("there is no object of MetalLB (%s), such as an IPAddressPool; MetalLB 0.12 and older was "+
		"configured by the ConfigMap config in its namespace: %s", Group, convertFirst)
	for _, p := range c.Problems {
		err = errors.Join(err, errors.New(p.String()))
	}
	return err
}

// convertFirst is what to do with the ConfigMap of MetalLB 0.12.
const convertFirst = "convert it to objects first, by MetalLB's own quay.io/metallb/configmaptocrs"

// A reader reads one object.
type reader struct {
	c      *Cluster
	source string
	gvk    schema.GroupVersionKind
	head   *head
	json   []byte
}

// object names the object in Problems. MetalLB reads one namespace, so its objects go by their name.
func (r reader) object() string {
	name := r.head.Metadata.Name
	if ns := r.head.Metadata.Namespace; ns != "" && r.gvk.Group != Group {
		name = ns + "/" + name
	}
	return r.gvk.Kind + " " + name
}

func (r reader) problem(field, value, message string) {
	r.c.problem(cluster.Problem{
		Object: cluster.Key{Kind: "MetalLB's " + r.object()}, File: r.source, Field: field, Value: value,
		Message: message,
	})
}

// refuseFRR reports configuration of FRR beside MetalLB's objects. MetalLB writes the FRRConfigurations whose
// names begin with its own, for its objects.
func (r reader) refuseFRR() {
	name := r.head.Metadata.Name
	if r.gvk.Kind == "FRRConfiguration" && !strings.HasPrefix(name, "metallb-") ||
		r.gvk.Kind == "ConfigMap" && name == "bgpextras" {
		r.problem("", "", "configures FRR itself, which is not converted; see what it asks of the router, and "+
			"whether a field of BGPPeer or BGPAdvertisement does it. Fanfare learns no routes")
	}
}

// refuseConfigMap reports the configuration of MetalLB 0.12 and older.
func (r reader) refuseConfigMap() {
	var o struct{ Data struct{ Config string } }
	if r.head.Metadata.Name != "config" || json.Unmarshal(r.json, &o) != nil {
		return
	}
	for _, key := range []string{"address-pools:", "peers:", "bgp-communities:", "bfd-profiles:"} {
		if strings.Contains(o.Data.Config, key) {
			r.problem("data[config]", "", "is the configuration of MetalLB 0.12 and older ("+key+
				" …), which is not converted; "+convertFirst)
			return
		}
	}
}

// first reports whether this is the first object of its kind and name. A second one would contradict
// it, and is usually a backup beside the file in use.
func (r reader) first() bool {
	if r.c.from == nil {
		r.c.from = map[string]string{}
	}
	key := r.gvk.Group + " " + r.object()
	if before, ok := r.c.from[key]; ok {
		r.problem("metadata.name", r.head.Metadata.Name,
			fmt.Sprintf("is in %s too, whose object counts; remove one of the two", before))
		return false
	}
	r.c.from[key] = r.source
	return true
}

// addObject decodes an object of MetalLB. One with an unknown field, or a value of the wrong type, is not
// converted: what the field says could be a restriction.
func addObject[S any](r reader, list *[]*Object[S]) {
	o := new(Object[S])
	strict, err := strictjson.UnmarshalStrict(r.json, o)
	for _, e := range strict {
		field := strings.TrimPrefix(e.Error(), "unknown field ")
		if name, err := strconv.Unquote(field); err == nil {
			field = name
		}
		r.problem(field, "", fmt.Sprintf("is no field of %s %s in MetalLB 0.16, so the object is not converted; "+
			"correct the field's name, or remove it and add by hand what it does", r.gvk.Kind, r.gvk.Version))
	}
	switch {
	case err != nil:
		r.problem("", "", "is not converted: "+err.Error())
	case o.Name == "":
		r.problem("metadata.name", "", "is missing, so the object is not converted")
	case len(strict) == 0 && r.first():
		insert(list, o)
		if o.Namespace != "" {
			r.c.namespaces = r.c.namespaces.Union(sets.New(o.Namespace))
		}
	}
}

// addLenient decodes an object of Kubernetes. One that cannot be decoded is left out, and reported:
// the comparison lacks it.
func addLenient[T any, O interface {
	*T
	metav1.Object
}](r reader, list *[]O) {
	o := O(new(T))
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(r.json, o); err != nil {
		r.c.problem(cluster.Problem{
			Object: cluster.Key{Kind: r.object()}, File: r.source, Message: "is not read: " + err.Error(),
		})
		return
	}
	if r.first() {
		insert(list, o)
	}
}

func (c *Cluster) problem(p cluster.Problem) { c.Problems = append(c.Problems, p) }

// insert keeps a list in the order of names, so that the order of files does not matter.
func insert[T metav1.Object](list *[]T, o T) {
	i, _ := slices.BinarySearchFunc(*list, o, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	*list = slices.Insert(*list, i, o)
}
