package scale

import (
	"strings"
	"testing"
	"time"
)

const traces = `File: kube-apiserver
Type: cpu
Duration: 12s, Total samples = 1.19s ( 9.91%)
-----------+-------------------------------------------------------
      10ms   runtime.mallocgc
             k8s.io/apiserver/pkg/endpoints/handlers.(*watchEncoder).doEncode
             k8s.io/apiserver/pkg/endpoints/handlers.ListResource.func1
             net/http.(*conn).serve
-----------+-------------------------------------------------------
     1.20s   k8s.io/apiserver/pkg/storage/cacher.(*Cacher).dispatchEvent
             k8s.io/apiserver/pkg/storage/cacher.(*Cacher).dispatchEvents
-----------+-------------------------------------------------------
      20ms   k8s.io/apiserver/pkg/storage/etcd3.(*store).GuaranteedUpdate
             k8s.io/apiserver/pkg/endpoints/handlers.(*patcher).patchResource
-----------+-------------------------------------------------------
      30ms   time.Now
             main.main
-----------+-------------------------------------------------------
`

func TestProfileParts(t *testing.T) {
	p := &profile{Lasted: 10 * time.Second, Parts: map[string]time.Duration{}}
	if err := p.add([]byte(traces)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"sends events and streamed lists to watches": "0.1 %", "gets events from etcd and hands them to watches": "12.0 %", "writes": "0.2 %", "the rest": "0.3 %", "answers lists": "0.0 %",
	} {
		if got := p.percent(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if err := p.add([]byte("\n-----------+---\n  x   a\n")); err == nil {
		t.Error("a CPU time that is none is accepted")
	}
}

// The page has the profiles that both kinds of clients have, and none of results without any.
func TestReportOfProfiles(t *testing.T) {
	o := options{small: 3, large: 5, create: 1, duration: time.Second, idle: time.Second}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	r := o.newReport()
	is := func(cpu time.Duration) *profile {
		return &profile{10 * time.Second, map[string]time.Duration{"writes": cpu}}
	}
	for kind, cpu := range map[kind]time.Duration{speakers: time.Second, proxies: 2 * time.Second} {
		r.Runs = append(r.Runs, run{r.Large, kind, []phase{{Name: start, Profile: is(cpu)}, {Name: restart}, {Name: created, Profile: is(2 * cpu)}}})
	}
	text, err := r.render()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| CPU time of kube-apiserver | start | Services created |\n", "| writes | 10.0 % / 20.0 % | 20.0 % / 40.0 % |\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for i := range r.Runs {
		for j := range r.Runs[i].Phases {
			r.Runs[i].Phases[j].Profile = nil
		}
	}
	if text, err = r.render(); err != nil || strings.Contains(text, "CPU time of kube-apiserver") {
		t.Errorf("without profiles: %v\n%s", err, text)
	}
}
