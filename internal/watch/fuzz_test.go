package watch

import (
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Whatever stands in a file, decoding it ends, in objects or in words.
func FuzzDecodeFile(f *testing.F) {
	f.Add("a.yaml", service("a", 1)+"---\n"+service("b", 2))
	f.Add("a.json", `{"kind": "List", "apiVersion": "v1", "items": [{"kind": "Node"}]} []`)
	f.Add("a.yaml", brokenYAML)
	f.Add("a.yaml", "--- # x\n...\n---\n- a\n--- |\n x\n")
	f.Add("a.yaml", "a: &a [*a]\n")
	f.Fuzz(func(t *testing.T, name, text string) {
		docs, err := decodeFile(name, []byte(text), nil, nil)
		if err != nil {
			return
		}
		again, err := decodeFile(name, []byte(text), docs, nil)
		if err != nil || len(again) != len(docs) {
			t.Fatalf("%d documents, then %d, %v", len(docs), len(again), err)
		}
		b := cluster.NewBuilder()
		for _, d := range docs {
			for _, it := range d.items {
				if it.obj == nil && len(it.problems) == 0 {
					t.Errorf("%s vanished", it.key)
				}
				if it.obj != nil {
					b.Set(it.obj, name)
				}
			}
		}
		b.Snapshot()
	})
}

func FuzzParseEvents(f *testing.F) {
	f.Add(overflowEvent)
	f.Fuzz(func(_ *testing.T, b []byte) { parseEvents(b) })
}
