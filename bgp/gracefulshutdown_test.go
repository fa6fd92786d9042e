package bgp

import (
	"strings"
	"testing"
)

// Routes that are about to go say so, to routers that have them and to routers that
// come later, and stop saying so; no session notices.
func TestFRRGracefulShutdown(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRR(t)
		external, internal := frrSession("10.0.0.2"), frrSession("10.0.0.3")
		internal.LocalASN = 65001
		for _, c := range []struct {
			name     string
			session  Session
			shutdown []string
		}{
			{"eBGP", external, []string{"graceful-shutdown"}},
			{"iBGP", internal, []string{"graceful-shutdown", "localpref 1,"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				s := newServer(t, Options{})
				want := state([]Session{c.session}, routes("192.0.2.1/32", "192.0.2.2/32"))
				says := func(prefix string) string { return r.vtysh("-c", "show bgp ipv4 unicast "+prefix) }
				has := func(prefix string) func() bool {
					return func() bool {
						text := says(prefix)
						for _, word := range c.shutdown {
							if !strings.Contains(text, word) {
								return false
							}
						}
						return true
					}
				}
				plain := func() bool {
					text := says("192.0.2.1/32") + says("192.0.2.2/32")
					return strings.Count(text, "10.0.0.") >= 2 && !strings.Contains(text, "graceful-shutdown") &&
						!strings.Contains(text, "localpref 1,")
				}
				set := func() {
					t.Helper()
					_, err := s.Set(t.Context(), want)
					must(t, err)
				}
				set()
				eventually(t, "plain routes", plain)
				r.happened()

				want.Shutdown = true
				set()
				eventually(t, "graceful shutdown",
					func() bool { return has("192.0.2.1/32")() && has("192.0.2.2/32")() })
				want.Routes = RoutesOf(routes("192.0.2.1/32", "192.0.2.3/32")...)
				set()
				eventually(t, "a route that comes later", has("192.0.2.3/32"))
				want.Routes = RoutesOf(routes("192.0.2.1/32", "192.0.2.2/32")...)
				want.Shutdown = false
				set()
				eventually(t, "plain routes again", plain)
				if st := s.sessionStatus("tor1"); st.Flaps != 0 {
					t.Errorf("session flapped: %s", st.LastError)
				}

				// And a session that opens in the middle of it.
				want.Shutdown = true
				set()
				must(t, s.Close(t.Context(), Withdraw))
				s = newServer(t, Options{})
				set()
				eventually(t, "graceful shutdown from the first route on", has("192.0.2.1/32"))
				must(t, s.Close(t.Context(), Withdraw))
				eventually(t, "withdrawal", func() bool { return r.kernel() == "" })
			})
		}
	})
}
