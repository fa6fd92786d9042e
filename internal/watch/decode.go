package watch

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/apigroup"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A kind is a kind of object that is read from files.
type kind struct {
	version    string
	namespaced bool
}

// kinds are the kinds that are read, by group and kind: a wrong version is reported, and does not
// make the object ignored.
var kinds = map[schema.GroupKind]kind{
	{Kind: "Service"}:   {"v1", true},
	{Kind: "Node"}:      {"v1", false},
	{Kind: "Namespace"}: {"v1", false},
	{Kind: "Secret"}:    {"v1", true},
	{Group: networkingv1.GroupName, Kind: "ServiceCIDR"}:           {"v1", false},
	{Group: discoveryv1.GroupName, Kind: "EndpointSlice"}:          {"v1", true},
	{Group: v1alpha1.GroupVersion.Group, Kind: "AddressPool"}:      {v1alpha1.GroupVersion.Version, false},
	{Group: v1alpha1.GroupVersion.Group, Kind: "BGPPeer"}:          {v1alpha1.GroupVersion.Version, false},
	{Group: v1alpha1.GroupVersion.Group, Kind: "BGPAdvertisement"}: {v1alpha1.GroupVersion.Version, false},
	{Group: v1alpha1.GroupVersion.Group, Kind: "L2Advertisement"}:  {v1alpha1.GroupVersion.Version, false},
	{Group: v1alpha1.GroupVersion.Group, Kind: "AddressClaim"}:     {v1alpha1.GroupVersion.Version, false},
}

// scheme has the kinds that exist: a kind that is not in it is misspelt, and the rest does not
// concern Fanfare. It also decodes the API server's answers.
var scheme = apigroup.Scheme(corev1.AddToScheme, discoveryv1.AddToScheme, v1alpha1.AddToScheme, addServiceCIDRs)

func addServiceCIDRs(s *runtime.Scheme) error {
	s.AddKnownTypes(networkingv1.SchemeGroupVersion, &networkingv1.ServiceCIDR{}, &networkingv1.ServiceCIDRList{})
	metav1.AddToGroupVersion(s, networkingv1.SchemeGroupVersion)
	return nil
}

// A document is one YAML document or JSON value, with the objects read from it.
type document struct {
	sum   [sha256.Size]byte // of its text
	line  int               // where it begins in the file, from 1
	items []item
}

// An item is an object of a document. obj is nil if it could not be decoded, and kept says that it is the
// last valid version instead; the problems do not name the file yet.
type item struct {
	key      cluster.Key
	uid      types.UID
	obj      runtime.Object
	kept     bool
	problems cluster.Problems
}

// report returns the problems, with their effect.
func (it item) report() cluster.Problems {
	p := slices.Clone(it.problems)
	for i := range p {
		switch {
		case p[i].Warning:
		case it.kept:
			p[i].Message += cluster.StaysInUse
		default:
			p[i].Message += "; the object is not used"
		}
	}
	return p
}

// A syntaxError means that a text is neither YAML nor JSON.
type syntaxError struct {
	line    int // in the file, from 1
	message string
}

// Error has the line as editors count it, from 1.
func (e *syntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.message) }

// unknown returns the first document that is not an object with a name, if there is one.
func unknown(docs []document) (d document, ok bool) {
	for _, d := range docs {
		for _, it := range d.items {
			if it.key == (cluster.Key{}) {
				return d, true
			}
		}
	}
	return document{}, false
}

// decodeFile reads the documents of a file. For documents with the same text in old, it reuses the
// objects: in a file with thousands of documents, only the changed ones are decoded. If an object
// does not decode, its old version is reused, too, or else the one of saved, by an earlier process. The error
// is a *syntaxError.
func decodeFile(name string, text []byte, old []document, saved map[cluster.Key]runtime.Object) ([]document, error) {
	split := splitYAML
	if path.Ext(name) == ".json" {
		split = splitJSON
	}
	texts, err := split(text)
	if err != nil {
		return nil, err
	}
	known := make(map[[sha256.Size]byte][]item, len(old))
	for _, d := range old {
		known[d.sum] = d.items
	}
	good := goodObjects(old)
	lastGood := func(it item) runtime.Object {
		if good[it.key] == nil && saved[it.key] != nil && cluster.UIDOf(saved[it.key]) == it.uid {
			return saved[it.key]
		}
		return good[it.key]
	}
	batches := slices.Collect(slices.Chunk(texts, batchSize))
	decoded, errs := make([][]document, len(batches)), make([]error, len(batches))
	onAllCores(len(batches), func(i int) { decoded[i], errs[i] = decodeDocuments(batches[i], known, lastGood) })
	for _, err := range errs {
		if err != nil {
			return nil, err // of the first bad document, whichever was decoded first
		}
	}
	return slices.Concat(decoded...), nil
}

// batchSize is how many documents of a file one goroutine decodes at a time.
const batchSize = 32

// decodeDocuments decodes documents, unless their text is known. The error is a *syntaxError.
func decodeDocuments(texts []text, known map[[sha256.Size]byte][]item,
	lastGood func(item) runtime.Object) ([]document, error) {
	docs := make([]document, 0, len(texts))
	for _, t := range texts {
		d := document{sum: sha256.Sum256(t.text), line: t.line}
		items, ok := known[d.sum]
		if !ok {
			j, duplicate, err := toJSON(t)
			if err != nil {
				return nil, err
			}
			items = decodeObjects(j, schema.GroupVersionKind{})
			if duplicate != "" {
				refuse(items, duplicate)
			}
		}
		d.items = keepGood(items, lastGood)
		docs = append(docs, d)
	}
	return docs, nil
}

// refuse makes objects of a document unusable.
func refuse(items []item, message string) {
	for i := range items {
		items[i].obj = nil
		items[i].problems.Add("", "", message)
	}
}

// goodObjects returns the decoded objects. Of several with the same key, the first one counts.
func goodObjects(docs []document) map[cluster.Key]runtime.Object {
	good := map[cluster.Key]runtime.Object{}
	for _, d := range docs {
		for _, it := range d.items {
			if it.obj != nil && good[it.key] == nil {
				good[it.key] = it.obj
			}
		}
	}
	return good
}

// keepGood replaces an object that did not decode by its last valid version, just as an API server
// would not have accepted the mistake: so no typo removes an address.
func keepGood(items []item, lastGood func(item) runtime.Object) []item {
	out := slices.Clone(items) // an older document may share them
	for i := range out {
		if it := &out[i]; it.obj == nil {
			it.obj = lastGood(*it)
			it.kept = it.obj != nil
		}
	}
	return out
}

// A text is one document before it is decoded, and the line that it begins in, from 1.
type text struct {
	text []byte
	line int
	json bool // of a file of JSON
}

// splitYAML splits at lines that begin with "---", which YAML allows only between documents. The
// marker belongs to the document that it begins.
func splitYAML(b []byte) ([]text, error) {
	texts := []text{{line: 1}}
	end, line := 0, 1
	for l := range bytes.Lines(b) {
		if isMarker(l) {
			texts = append(texts, text{line: line})
		}
		last := &texts[len(texts)-1]
		end, line = end+len(l), line+1
		last.text = b[end-len(l)-len(last.text) : end]
	}
	return slices.DeleteFunc(texts, func(t text) bool { return blank(t.text) }), nil
}

// isMarker reports whether b begins with the line that separates YAML documents.
func isMarker(b []byte) bool {
	rest, ok := bytes.CutPrefix(b, []byte("---"))
	return ok && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0)
}

// blank reports whether a document contains only comments and a marker.
func blank(doc []byte) bool {
	if isMarker(doc) {
		doc = doc[len("---"):]
	}
	for l := range bytes.Lines(doc) {
		if l = bytes.TrimSpace(l); len(l) != 0 && l[0] != '#' {
			return false
		}
	}
	return true
}

// splitJSON splits consecutive JSON values, as kubectl prints several objects.
func splitJSON(b []byte) ([]text, error) {
	var texts []text
	counted, line := 0, 1
	lineAt := func(i int) int { // i never decreases: counting all lines for each value takes minutes in a large file
		line += bytes.Count(b[counted:i], []byte("\n"))
		counted = i
		return line
	}
	d := json.NewDecoder(bytes.NewReader(b))
	for {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if err == io.EOF {
			return texts, nil
		}
		end := int(d.InputOffset())
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			end = min(int(syntax.Offset), len(b))
		}
		if err != nil {
			return nil, &syntaxError{lineAt(max(end, counted)), err.Error()}
		}
		texts = append(texts, text{text: raw, line: lineAt(end - len(raw)), json: true})
	}
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): `)

// toJSON converts a document to JSON. duplicate says which key of a mapping is set twice: only the parser of
// YAML sees it, which doesn't say in which object of a list. The error is a *syntaxError.
func toJSON(t text) (j []byte, duplicate string, err error) {
	if t.json || json.Valid(t.text) {
		return t.text, "", nil
	}
	j, strict := yaml.YAMLToJSONStrict(t.text)
	if strict == nil {
		return j, "", nil
	}
	if j, err = yaml.YAMLToJSON(t.text); err != nil {
		return nil, "", asSyntaxError(err, t.line)
	}
	return j, asSyntaxError(strict, t.line).Error() + "; remove one of the two", nil
}

// asSyntaxError replaces the line in the document, which begins at line, by the line in the file.
func asSyntaxError(err error, line int) error {
	msg := strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n  ")
	msg, _, _ = strings.Cut(msg, "\n")
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		n, _ := strconv.Atoi(m[1])
		line += n - 1
		msg = msg[len(m[0]):]
	}
	return &syntaxError{line, strings.TrimPrefix(msg, "yaml: ")}
}

// A head is the type and name of any object, or the items of a list.
type head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string    `json:"name"`
		Namespace string    `json:"namespace"`
		UID       types.UID `json:"uid"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// decodeObjects reads an object, or the objects of a list. of is the type of an object without one,
// as in a typed list. Objects of kinds that Fanfare does not read are ignored: a folder may contain
// whole applications.
func decodeObjects(j []byte, of schema.GroupVersionKind) []item {
	var h head
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(j, &h); err != nil {
		return bad("is no Kubernetes object: apiVersion, kind, metadata.name or metadata.namespace is no text, or " +
			"all of them are missing")
	}
	gv, err := schema.ParseGroupVersion(h.APIVersion)
	if err != nil {
		return bad(fmt.Sprintf("apiVersion %q has more than one slash", h.APIVersion))
	}
	gvk := gv.WithKind(h.Kind)
	if h.Kind == "" && h.APIVersion == "" {
		gvk = of
	}
	if elem, ok := listOf(gvk); ok {
		var items []item
		for _, raw := range h.Items {
			items = append(items, decodeObjects(raw, elem)...)
		}
		return items
	}
	k, ok := kinds[gvk.GroupKind()]
	switch {
	case gvk.Kind == "":
		return bad("has no kind; write one such as kind: AddressPool")
	case !ok && gvk.Group == metalLB && h.Metadata.Name != "":
		it := item{key: h.key("MetalLB's "+gvk.Kind, true)}
		it.problems.Add("apiVersion", h.APIVersion,
			"is an object of MetalLB; `fanfare migrate metallb --files FILE` converts it")
		return []item{it}
	case !ok && misspelt(gvk):
		return bad(fmt.Sprintf("there is no kind %s in %q%s", gvk.Kind, h.APIVersion, suggestKind(gvk.Kind)))
	case !ok:
		return nil
	case h.Metadata.Name == "":
		return bad(fmt.Sprintf("this %s has no metadata.name", gvk.Kind))
	}
	it := item{key: h.key(gvk.Kind, k.namespaced), uid: h.Metadata.UID}
	if gvk.Version != k.version {
		it.problems.Add("apiVersion", h.APIVersion,
			fmt.Sprintf("write %s", gvk.GroupKind().WithVersion(k.version).GroupVersion()))
		return []item{it}
	}
	empty, err := scheme.New(gvk)
	if err != nil {
		panic("BUG: " + err.Error()) // The scheme has all kinds.
	}
	it.obj, it.problems = decodeTyped(j, empty)
	if gvk.Kind == "Secret" { // its values must not get into a status
		for i := range it.problems {
			it.problems[i].Value = ""
		}
	}
	if o, ok := it.obj.(metav1.Object); ok {
		o.SetNamespace(it.key.Name.Namespace)
	}
	return []item{it}
}

// metalLB is the API group of MetalLB. Its kinds have the names of some of Fanfare's, so users may
// expect that they are read.
const metalLB = "metallb.io"

// listOf returns the type of a list's items: any type in a List, and one kind in a typed list,
// whose items may omit it.
func listOf(gvk schema.GroupVersionKind) (elem schema.GroupVersionKind, ok bool) {
	kind, ok := strings.CutSuffix(gvk.Kind, "List")
	elem = gvk.GroupVersion().WithKind(kind)
	_, known := kinds[elem.GroupKind()]
	return elem, ok && (known || kind == "")
}

// key adds namespace default if a namespace is needed and none is named, as kubectl does.
func (h *head) key(kind string, namespaced bool) cluster.Key {
	name := cluster.Name{Name: h.Metadata.Name}
	if namespaced {
		name.Namespace = cmp.Or(h.Metadata.Namespace, metav1.NamespaceDefault)
	}
	return cluster.Key{Kind: kind, Name: name}
}

// bad returns a Problem about a document without a name.
func bad(message string) []item {
	return []item{{problems: cluster.Problems{{Message: message}}}}
}

// misspelt reports whether a kind that Fanfare does not read does not exist at all.
func misspelt(gvk schema.GroupVersionKind) bool {
	switch gvk.Group {
	case v1alpha1.GroupVersion.Group:
		return !scheme.Recognizes(v1alpha1.GroupVersion.WithKind(gvk.Kind))
	case discoveryv1.GroupName:
		return !strings.HasPrefix(gvk.Kind, "EndpointSlice")
	case corev1.GroupName:
		return !scheme.Recognizes(gvk)
	}
	return false
}

// suggestKind ends the message about an unknown kind, with the right apiVersion or a kind of a
// similar name. It is empty if there is neither.
func suggestKind(name string) string {
	var known []string
	for gk, k := range kinds {
		if gk.Kind == name {
			return "; write apiVersion: " + gk.WithVersion(k.version).GroupVersion().String()
		}
		known = append(known, gk.Kind)
	}
	return cluster.DidYouMean(name, known)
}

// decodeTyped reads j into obj. As an API server that validates strictly, it refuses an object with a field
// that does not exist, one that is set twice, or a value of the wrong type: a misspelt selector would leave an
// object without any, open to all. The object is nil then.
func decodeTyped(j []byte, obj runtime.Object) (runtime.Object, cluster.Problems) {
	strict, err := strictjson.UnmarshalStrict(j, obj)
	if err == nil && len(strict) == 0 {
		return obj, nil
	}
	// The decoder's error has no index, no value and, for types that decode themselves, no field.
	// So find the mistakes again, one by one.
	p := mismatches(j, obj)
	for _, e := range strict {
		if strings.HasPrefix(e.Error(), "duplicate field") {
			p.Add("", "", e.Error()+"; remove one of the two")
		}
	}
	if err != nil && len(p) == 0 {
		p.Add("", "", err.Error())
	}
	if unusable(p) {
		return nil, p
	}
	return obj, p
}

// unusable reports whether a Problem makes an object unusable.
func unusable(p cluster.Problems) bool {
	return slices.ContainsFunc(p, func(p cluster.Problem) bool { return !p.Warning })
}
