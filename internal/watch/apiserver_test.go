package watch

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	restwatch "k8s.io/client-go/rest/watch"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// An apiServer lists and watches as kube-apiserver does: over HTTP, in protobuf
// and JSON, with versions, selectors, and the errors of a server that has
// no history. It can go away, forget, and be restored from a backup.
type apiServer struct {
	t        testing.TB
	addr     string
	http     *http.Server
	listener net.Listener

	mu       sync.Mutex
	version  int
	objects  map[cluster.Key]object
	history  []apiEvent // in order of version
	forgot   int        // the version before which history is forgotten
	news     chan struct{}
	hangup   chan struct{} // closed to end all watches
	refused  map[string]*apierrors.StatusError
	streams  bool           // lists are streamed to who asks for it; else that is 422
	requests map[string]int // by resource and what was asked for
	process  int            // how often it was started
	read     map[string]int // by resource: the last process whose version a client received
}

type apiEvent struct {
	version int
	typ     apiwatch.EventType
	obj     object
}

// served are the kinds, by resource.
var served = map[string]schema.GroupVersionKind{
	"services":          {Version: "v1", Kind: "Service"},
	"secrets":           {Version: "v1", Kind: "Secret"},
	"nodes":             {Version: "v1", Kind: "Node"},
	"endpointslices":    {Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"},
	"namespaces":        {Version: "v1", Kind: "Namespace"},
	"servicecidrs":      {Group: "networking.k8s.io", Version: "v1", Kind: "ServiceCIDR"},
	"addresspools":      v1alpha1.GroupVersion.WithKind("AddressPool"),
	"bgppeers":          v1alpha1.GroupVersion.WithKind("BGPPeer"),
	"addressclaims":     v1alpha1.GroupVersion.WithKind("AddressClaim"),
	"bgpadvertisements": v1alpha1.GroupVersion.WithKind("BGPAdvertisement"),
	"l2advertisements":  v1alpha1.GroupVersion.WithKind("L2Advertisement"),
	"speakerstatuses":   v1alpha1.GroupVersion.WithKind("SpeakerStatus"),
}

func newAPIServer(t testing.TB, objects ...clustertest.Object) *apiServer {
	s := &apiServer{
		t:       t,
		version: 100,
		objects: map[cluster.Key]object{},
		news:    make(chan struct{}),
		hangup:  make(chan struct{}),
		refused: map[string]*apierrors.StatusError{},
		streams: true,
	}
	s.requests, s.read = map[string]int{}, map[string]int{}
	s.set(objects...)
	s.up()
	t.Cleanup(s.down)
	return s
}

func (s *apiServer) config() *rest.Config { return &rest.Config{Host: "http://" + s.addr} }

// up listens, at the address of last time if there is one.
func (s *apiServer) up() {
	s.t.Helper()
	if s.addr == "" {
		// Not 127.0.0.1, which clients connect from: while we are down, one of them
		// could be given our port.
		s.addr = fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	}
	l, err := net.Listen("tcp", s.addr)
	must(s.t, err)
	s.addr, s.listener = l.Addr().String(), l
	s.mu.Lock()
	s.process++
	process := s.process
	s.mu.Unlock()
	s.http = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serve(w, r, process)
	})}
	go s.http.Serve(l)
}

// down ends the process, as it were: what comes is refused.
func (s *apiServer) down() {
	s.listener.Close()
	s.http.Close()
}

// set creates or updates objects. They get a UID and a version of their own.
func (s *apiServer) set(objects ...clustertest.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		key, ok := cluster.KeyOf(o)
		if !ok {
			s.t.Fatalf("%T is not served", o)
		}
		o = o.DeepCopyObject().(object)
		o.SetUID(types.UID("uid of " + key.String()))
		typ := apiwatch.Added
		if s.objects[key] != nil {
			typ = apiwatch.Modified
		}
		s.happen(typ, o)
		s.objects[key] = o
	}
}

func (s *apiServer) delete(key cluster.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[key]; o != nil {
		delete(s.objects, key)
		s.happen(apiwatch.Deleted, o.DeepCopyObject().(object))
	}
}

func (s *apiServer) happen(typ apiwatch.EventType, o object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	s.history = append(s.history, apiEvent{s.version, typ, o})
	close(s.news)
	s.news = make(chan struct{})
}

// drop ends all watches.
func (s *apiServer) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.hangup)
	s.hangup = make(chan struct{})
}

// forget makes watches from any version but the newest fail.
func (s *apiServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++ // Time has passed: the version of a client is no longer the newest.
	s.history, s.forgot = nil, s.version
}

type backup struct {
	version int
	objects map[cluster.Key]object
}

func (s *apiServer) backup() backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return backup{s.version, maps.Clone(s.objects)}
}

func (s *apiServer) restore(b backup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.objects, s.history, s.forgot = b.version, maps.Clone(b.objects), nil, b.version
}

// refuse answers requests for a resource, or for "resource name", with err; nil ends it.
func (s *apiServer) refuse(resource string, err *apierrors.StatusError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[resource] = err
	if err == nil {
		delete(s.refused, resource)
	}
}

func (s *apiServer) asked(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[what]
}

// all are the objects as they are now, as a client would get them.
func (s *apiServer) all() []runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []runtime.Object
	for _, o := range s.objects {
		all = append(all, o.DeepCopyObject())
	}
	return all
}

// An apiRequest is a parsed request.
type apiRequest struct {
	resource string
	name     string // of the only object, by the field selector
	gvk      schema.GroupVersionKind
	matches  func(object) bool
	version  int // -1 when none was named
	watch    bool
	stream   bool // the watch begins with all there is
	one      bool // a list of one object: only its version matters
	process  int  // which process received it
	media    runtime.SerializerInfo
	codecs   serializer.CodecFactory
}

func (s *apiServer) parse(r *http.Request) (q apiRequest, err error) {
	v := r.URL.Query()
	q = apiRequest{resource: path.Base(r.URL.Path), version: -1, codecs: serializer.NewCodecFactory(scheme)}
	q.watch = v.Get("watch") == "true"
	q.stream, q.one = v.Get("sendInitialEvents") == "true", v.Get("limit") == "1"
	var ok bool
	if q.gvk, ok = served[q.resource]; !ok {
		return q, fmt.Errorf("no resource %s", q.resource)
	}
	accept := r.Header.Get("Accept")
	if q.media, ok = runtime.SerializerInfoForMediaType(q.codecs.SupportedMediaTypes(), accept); !ok {
		return q, fmt.Errorf("media type %s", accept)
	}
	// A CRD has no protobuf, and to read a Service as JSON would be waste.
	if ours := q.gvk.Group == v1alpha1.GroupVersion.Group; ours != (accept == runtime.ContentTypeJSON) {
		return q, fmt.Errorf("%s in %s", q.resource, accept)
	}
	if rv := v.Get("resourceVersion"); rv != "" {
		if q.version, err = strconv.Atoi(rv); err != nil {
			return q, err
		}
	}
	f, err := fields.ParseSelector(v.Get("fieldSelector"))
	l, lerr := labels.Parse(v.Get("labelSelector"))
	q.name, _ = f.RequiresExactMatch("metadata.name")
	if q.resource == "secrets" && q.name == "" {
		return q, errors.New("the role permits no list of all Secrets")
	}
	q.matches = func(o object) bool {
		gvk, _, _ := scheme.ObjectKinds(o)
		set := fields.Set{"metadata.name": o.GetName()}
		if secret, ok := o.(*corev1.Secret); ok {
			set["type"] = string(secret.Type)
		}
		return gvk[0] == q.gvk && l.Matches(labels.Set(o.GetLabels())) && f.Matches(set) &&
			strings.HasPrefix(r.URL.Path, within(o, q.resource))
	}
	return q, errors.Join(err, lerr)
}

// within is the path by which an object is found: Secrets are only asked for in
// their namespace, and all else in all of them.
func within(o object, resource string) string {
	if resource == "secrets" {
		return "/api/v1/namespaces/" + o.GetNamespace() + "/"
	}
	return "/api"
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request, process int) {
	q, err := s.parse(r)
	q.process = process
	if err != nil {
		s.t.Errorf("request %s: %v", r.URL, err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if status := s.refusal(q); status != nil {
		q.write(w, int(status.ErrStatus.Code), &status.ErrStatus)
		return
	}
	if q.watch {
		s.serveWatch(w, r, q)
	} else {
		s.serveList(w, q)
	}
}

func (s *apiServer) refusal(q apiRequest) *apierrors.StatusError {
	s.mu.Lock()
	defer s.mu.Unlock()
	verb := map[bool]string{true: "watch ", false: "list "}[q.watch] + q.resource
	if q.stream {
		verb = "stream " + q.resource
	}
	if q.one {
		verb = "confirm " + q.resource
	}
	s.requests[verb]++
	if q.name != "" {
		s.requests[verb+" "+q.name]++
	}
	switch {
	case s.refused[q.resource] != nil:
		return s.refused[q.resource]
	case s.refused[q.resource+" "+q.name] != nil:
		return s.refused[q.resource+" "+q.name]
	case q.stream && !s.streams:
		return apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", nil)
	case q.version > s.version && (q.stream || !q.watch):
		err := apierrors.NewTimeoutError("Too large resource version", 1)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
		return err
	}
	return nil
}

func (q apiRequest) write(w http.ResponseWriter, code int, o runtime.Object) {
	gv := q.gvk.GroupVersion()
	if _, ok := o.(*metav1.Status); ok {
		gv = schema.GroupVersion{Version: "v1"}
	}
	w.Header().Set("Content-Type", q.media.MediaType)
	w.WriteHeader(code)
	_ = q.codecs.EncoderForVersion(q.media.Serializer, gv).Encode(o, w) // The client may be gone.
}

// current are the objects that q is about, sorted by name, and their version.
func (s *apiServer) current(q apiRequest) (objects []runtime.Object, version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range slices.SortedFunc(maps.Keys(s.objects),
		func(a, b cluster.Key) int { return a.Name.Compare(b.Name) }) {
		if o := s.objects[key]; q.matches(o) {
			objects = append(objects, o.DeepCopyObject())
		}
	}
	s.read[q.resource] = max(s.read[q.resource], q.process)
	return objects, s.version
}

func (s *apiServer) serveList(w http.ResponseWriter, q apiRequest) {
	objects, version := s.current(q)
	if q.one {
		objects = objects[:min(len(objects), 1)]
	}
	list, err := scheme.New(q.gvk.GroupVersion().WithKind(q.gvk.Kind + "List"))
	if err == nil {
		err = meta.SetList(list, objects)
	}
	if err != nil {
		s.t.Error(err)
	}
	list.(metav1.ListInterface).SetResourceVersion(strconv.Itoa(version))
	q.write(w, http.StatusOK, list)
}

func (s *apiServer) serveWatch(w http.ResponseWriter, r *http.Request, q apiRequest) {
	w.Header().Set("Content-Type", q.media.MediaType+";stream=watch")
	w.WriteHeader(http.StatusOK)
	gv := q.gvk.GroupVersion()
	frames := streaming.NewEncoder(q.media.StreamSerializer.NewFrameWriter(w),
		q.codecs.EncoderForVersion(q.media.StreamSerializer.Serializer, gv))
	out := restwatch.NewEncoder(frames, q.codecs.EncoderForVersion(q.media.Serializer, gv))
	send := func(typ apiwatch.EventType, o runtime.Object) {
		// The encoder writes into the object. The client may be gone.
		_ = out.Encode(&apiwatch.Event{Type: typ, Object: o.DeepCopyObject()})
	}
	from := q.version
	if q.stream {
		from = s.sendAll(q, send)
	}
	for {
		s.mu.Lock()
		forgotten := from < s.forgot
		i := slices.IndexFunc(s.history, func(e apiEvent) bool { return e.version > from })
		var events []apiEvent
		if i >= 0 {
			events = s.history[i:]
		}
		news, hangup := s.news, s.hangup
		s.mu.Unlock()
		if forgotten {
			send(apiwatch.Error, &apierrors.NewResourceExpired("too old resource version").ErrStatus)
			return
		}
		for _, e := range events {
			from = e.version
			if q.matches(e.obj) {
				send(e.typ, e.obj)
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-news:
		case <-hangup:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// sendAll sends all objects and the bookmark that says that those were all.
func (s *apiServer) sendAll(q apiRequest, send func(apiwatch.EventType, runtime.Object)) (version int) {
	objects, version := s.current(q)
	for _, o := range objects {
		send(apiwatch.Added, o)
	}
	mark, err := scheme.New(q.gvk)
	if err != nil {
		s.t.Error(err)
	}
	mark.(object).SetResourceVersion(strconv.Itoa(version))
	mark.(object).SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	send(apiwatch.Bookmark, mark)
	return version
}

// open watches the server as o says.
func (s *apiServer) open(o Options) *API {
	s.t.Helper()
	o.Log = quiet
	a, err := OpenAPI(s.t.Context(), s.config(), o)
	must(s.t, err)
	return a
}

// awaitAPI waits until done says that the snapshot is right. It says what is wrong
// otherwise.
func awaitAPI(t testing.TB, a *API, wrong func(*cluster.Snapshot) string) *cluster.Snapshot {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		s := a.Snapshot()
		w := wrong(s)
		if w == "" {
			return s
		}
		select {
		case <-a.Changed():
		case <-timeout:
			t.Fatalf("still wrong: %s", w)
		}
	}
}
