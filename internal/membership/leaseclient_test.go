package membership

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// The requests of a LeaseClient to the API server, and the records from its answers.
func TestLeaseClient(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	there := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, r.Method+" "+r.URL.String()+" "+string(body))
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method == "GET":
			for renewal, metadata := range map[string]string{
				"2026-01-01T00:00:00.000001Z": `{"name":"n2"}`,
				"2026-01-01T00:00:05.000002Z": `{"name":"n2","annotations":{"fanfare.io/interfaces":"AQI=","fanfare.io/released":"7"}}`,
			} {
				fmt.Fprintf(w, `{"type":"MODIFIED","object":{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":%s,"spec":{"renewTime":%q}}}`, metadata, renewal)
			}
		case r.Method == "PATCH" && !there:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		default:
			there = true
			fmt.Fprint(w, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"n1"}}`)
		}
	}))
	defer s.Close()
	l, err := NewLeaseClient(&rest.Config{Host: s.URL}, "fanfare-node-lease")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.renew(t.Context(), "n1", "uid-n1", 5*time.Second,
			leaseRecord{meta: []byte{1, 2}, released: "7"}); err != nil {
			t.Fatal(err)
		}
	}
	var seen []string
	if err := l.watch(t.Context(), []string{"n2"}, func(_ string, b leaseRecord) {
		seen = append(seen, fmt.Sprintf("%s %x %q", b.renewTime, b.meta, b.released))
	}); err == nil {
		t.Error("the watch ended without an error")
	}
	slices.Sort(seen)
	if got := strings.Join(seen, ", "); got != `2026-01-01T00:00:00.000001Z  "", 2026-01-01T00:00:05.000002Z 0102 "7"` {
		t.Errorf("seen %s", got)
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/fanfare-node-lease/leases"
	for i, want := range []string{"PATCH " + leases + "/n1 ", "POST " + leases + " ", "PATCH " + leases + "/n1 ",
		"GET " + leases + "?labelSelector=fanfare.io%2Fnode-hash+in+%288b37e07b558d9d9%29&watch=true "} {
		if i >= len(asked) || !strings.HasPrefix(asked[i], want) {
			t.Fatalf("asked %q, want %q", asked, want)
		}
	}
	var made struct {
		Metadata struct {
			Name            string
			Annotations     map[string]string
			Labels          map[string]string
			OwnerReferences []struct{ Kind, Name, UID string }
		}
		Spec struct {
			HolderIdentity       string
			LeaseDurationSeconds int
			RenewTime            time.Time
		}
	}
	_, body, _ := strings.Cut(asked[1], " {")
	if err := json.Unmarshal([]byte("{"+body), &made); err != nil {
		t.Fatal(err)
	}
	if o := made.Metadata.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].Name != "n1" ||
		o[0].UID != "uid-n1" ||
		fmt.Sprint(made.Metadata.Annotations) != "map[fanfare.io/interfaces:AQI= fanfare.io/released:7]" ||
		made.Spec.HolderIdentity != "n1" || made.Metadata.Labels["fanfare.io/node-hash"] != "8b37b07b558d4c0" ||
		made.Spec.LeaseDurationSeconds != 180 || made.Spec.RenewTime.IsZero() {
		t.Errorf("made %+v", made)
	}
}
