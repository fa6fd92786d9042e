package kube

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The API server returns what is stored, in any number, and goes on with what it had.
func TestStoredObjects(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		must(t, f.Admin().Apply(t.Context(), `{apiVersion: v1, kind: Namespace, metadata: {name: stored}}`))
		var want []Stored
		for i := range 2*maxOperations + 1 {
			name := fmt.Sprintf("c%03d", i)
			want = append(want, Stored{
				Key:   "/registry/configmaps/stored/" + name,
				Value: fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"stored","name":%q,"uid":%[1]q},"data":{"is":%[1]q}}`, name),
			})
		}
		must(t, f.Store(t.Context(), want))
		have, err := f.Admin().List(t.Context(), schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
		must(t, err)
		count := 0
		for _, o := range have {
			if o.GetNamespace() != "stored" || o.GetName() == "kube-root-ca.crt" {
				continue
			}
			if data := fmt.Sprint(o.Object["data"]); data != "map[is:"+o.GetName()+"]" {
				t.Errorf("%s has the data %s", o.GetName(), data)
			}
			count++
		}
		if count != len(want) {
			t.Errorf("%d objects, want %d", count, len(want))
		}
		if list, err := f.Admin().List(t.Context(),
			schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}); err != nil || len(list) < 2 {
			t.Errorf("namespaces after the restart: %d, %v", len(list), err)
		}
	})
}
