package watch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

const many = 10_000

func sliceYAML(i, n int) string {
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s%d-1, labels: {kubernetes.io/service-name: s%d}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.%d.%d.%d], nodeName: n1, conditions: {ready: true}}
- {addresses: [10.200.0.1], nodeName: n2, conditions: {ready: true}}
`, i, i, n%200, i/250, i%250)
}

// manyObjects writes 10,000 Services and their EndpointSlices, each slice in a
// file of its own.
func manyObjects(b *testing.B) string {
	dir := b.TempDir()
	for i := range many {
		must(b, os.WriteFile(filepath.Join(dir, fmt.Sprintf("slice-%05d.yaml", i)), []byte(sliceYAML(i, 0)), 0o644))
		must(b, os.WriteFile(filepath.Join(dir, fmt.Sprintf("service-%05d.yaml", i)),
			[]byte(service(fmt.Sprint("s", i), 80)), 0o644))
	}
	return dir
}

// BenchmarkFilesOneSlice is the time from the rename of one EndpointSlice's file
// to the snapshot that has it, among 10,000 Services: kernel, YAML and all.
func BenchmarkFilesOneSlice(b *testing.B) {
	dir := manyObjects(b)
	f, err := OpenFiles(b.Context(), dir, nil, quiet)
	must(b, err)
	if n := f.Snapshot().Services.Len(); n != many {
		b.Fatalf("%d Services", n)
	}
	tmp, path := filepath.Join(dir, "x.tmp"), filepath.Join(dir, "slice-05000.yaml")
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		b.StopTimer()
		must(b, os.WriteFile(tmp, []byte(sliceYAML(5000, n)), 0o644))
		b.StartTimer()
		must(b, os.Rename(tmp, path))
		<-f.Changed()
		f.Snapshot()
	}
}

// BenchmarkFilesLoad is the time to read the whole folder of 20,000 files.
func BenchmarkFilesLoad(b *testing.B) {
	dir := manyObjects(b)
	for b.Loop() {
		f, err := ReadFiles(dir, nil, cluster.Scope{}, quiet)
		must(b, err)
		must(b, f.events.Close())
	}
}

// BenchmarkFilesLoadOneFile is the time to read the same objects from one file.
func BenchmarkFilesLoadOneFile(b *testing.B) {
	dir := b.TempDir()
	docs := make([]string, 0, 2*many)
	for i := range many {
		docs = append(docs, sliceYAML(i, 0), service(fmt.Sprint("s", i), 80))
	}
	must(b, os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(strings.Join(docs, "---\n")), 0o644))
	for b.Loop() {
		f, err := ReadFiles(dir, nil, cluster.Scope{}, quiet)
		must(b, err)
		must(b, f.events.Close())
	}
}

// BenchmarkFilesOneInALargeFile is what one change costs when all 10,000 slices
// are in one file.
func BenchmarkFilesOneInALargeFile(b *testing.B) {
	dir := b.TempDir()
	docs := make([]string, many)
	for i := range docs {
		docs[i] = sliceYAML(i, 0)
	}
	path := filepath.Join(dir, "all.yaml")
	must(b, os.WriteFile(path, []byte(strings.Join(docs, "---\n")), 0o644))
	f, err := ReadFiles(dir, nil, cluster.Scope{}, quiet)
	must(b, err)
	n := 0
	for b.Loop() {
		n++
		b.StopTimer()
		docs[5000] = sliceYAML(5000, n)
		must(b, os.WriteFile(path, []byte(strings.Join(docs, "---\n")), 0o644))
		b.StartTimer()
		f.look(map[string]arrival{"all.yaml": placed})
		f.publish()
	}
}

// BenchmarkWriteSnapshot is what a speaker writes down every ten seconds while anything
// changes.
func BenchmarkWriteSnapshot(b *testing.B) {
	builder := cluster.NewBuilder()
	for _, o := range crowd() {
		builder.Set(o, "")
	}
	path := filepath.Join(b.TempDir(), "cluster.json")
	b.ReportAllocs()
	for b.Loop() {
		must(b, WriteSnapshot(path, builder.Snapshot()))
	}
}

// BenchmarkAPIOneSlice is the time from an event on the wire, one EndpointSlice
// among 10,000 Services, to the snapshot that has it: HTTP, protobuf and all. The
// server's part, in the same process, is in it.
func BenchmarkAPIOneSlice(b *testing.B) {
	s := newAPIServer(b, crowd()...)
	a := s.open(Options{})
	if n := a.Snapshot().Services.Len(); n != many {
		b.Fatalf("%d Services", n)
	}
	<-a.Changed()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		o := clustertest.EndpointSlice("s05000-1", "s05000", "10.0.0.1", fmt.Sprintf("10.0.1.%d", n%250))
		s.set(o)
		<-a.Changed()
		a.Snapshot()
	}
}

// BenchmarkAPIOpen is the time to read 10,000 Services and their slices, and the
// memory that is kept of them.
func BenchmarkAPIOpen(b *testing.B) {
	s := newAPIServer(b, crowd()...)
	var kept uint64
	for b.Loop() {
		before := heap()
		ctx, cancel := context.WithCancel(b.Context())
		a, err := OpenAPI(ctx, s.config(), Options{Log: quiet})
		must(b, err)
		kept = heap() - before
		runtime.KeepAlive(a)
		cancel()
	}
	b.ReportMetric(float64(kept)/(1<<20), "MiB-kept")
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// crowd are 10,000 Services with a slice of two endpoints each, as large as those
// of a real cluster.
func crowd() []clustertest.Object {
	objects := make([]clustertest.Object, 0, 2*many)
	managed := []metav1.ManagedFieldsEntry{{
		Manager: "kube-controller-manager", Operation: "Update", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(strings.Repeat(`{"f:metadata":{"f:labels":{}}}`, 30)),
	}}
	for i := range many {
		s := clustertest.Service(fmt.Sprintf("s%05d", i), fmt.Sprintf("10.%d.%d.%d", 100+i>>16, i>>8&255, i&255))
		e := clustertest.EndpointSlice(s.Name+"-1", s.Name, "10.0.0.1", "10.0.0.2")
		s.ManagedFields, e.ManagedFields = managed, managed
		objects = append(objects, s, e)
	}
	return objects
}
