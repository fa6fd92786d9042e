package bgp

import (
	"strings"
	"testing"
)

// More routes than a Set hands over arrive in the background, also when only their marks change, and
// count as announced from the Set on until they are withdrawn.
func TestManyRoutesInTheBackground(t *testing.T) {
	const n = 5*routesPart + 1
	r := startRouter(t, routerConf{})
	s := newServer(t, Options{})
	want := state([]Session{r.session("tor1")}, manyRoutes(n))
	has := func(text string, count int) {
		t.Helper()
		eventually(t, text, func() bool { return strings.Count(r.adjIn(), text) == count })
	}
	set := func(announced int) {
		t.Helper()
		have, err := s.Set(t.Context(), want)
		must(t, err)
		if len(have) != announced {
			t.Errorf("%d prefixes are announced, want %d", len(have), announced)
		}
	}
	set(n)
	has("via", n)
	want.Shutdown = true
	set(n)
	has("graceful-shutdown", n)
	want.Shutdown = false
	set(n)
	has("graceful-shutdown", 0)
	has("via", n)
	want.Routes = nil
	set(n - routesPart)
	has("via", 0)
	eventually(t, "withdrawn", func() bool {
		have, err := s.Set(t.Context(), want)
		return err == nil && len(have) == 0
	})
	if st := s.sessionStatus("tor1"); st.Flaps != 0 {
		t.Errorf("the session flapped: %s", st.LastError)
	}
}
