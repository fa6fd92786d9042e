package bgp

import (
	"testing"
	"time"
)

func TestSmoke(t *testing.T) {
	r := startRouter(t, routerConf{})
	s := newServer(t, Options{})
	begin := time.Now()
	have, err := s.Set(t.Context(), state([]Session{r.session("tor1")}, routes("192.0.2.1/32")))
	t.Log(have, err, time.Since(begin))
	within(t, 5*time.Second, "route", func() bool { return r.adjIn() != "" })
	t.Log(r.adjIn(), time.Since(begin))
	t.Logf("%+v", s.Status())
}
