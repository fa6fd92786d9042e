package bgp

import (
	"errors"
	"strings"
	"testing"
)

// Of two sessions with one router the first has it, and the second is refused by name. When
// the first goes, the second takes over, also for what was only for it to announce.
func TestFRRDuplicateRouter(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRR(t)
		s := newServer(t, Options{})
		older, newer := frrSession("10.0.0.2"), frrSession("10.0.0.2")
		older.Name, newer.Name = "b-older", "a-newer"
		all := routes("192.0.2.1/32", "192.0.2.2/32 to a-newer", "192.0.2.3/32 to b-older")

		_, err := s.Set(t.Context(), state([]Session{older, newer}, all))
		const want = "session a-newer: PeerAddress 10.0.0.1: session b-older has it already, and there can be only " +
			"one, also with another port or device; remove one of them"
		if faults := (Faults)(nil); !errors.As(err, &faults) || faults.Error() != want {
			t.Errorf("two sessions: %v, want %s", err, want)
		}
		eventually(t, "the older one's routes", func() bool { return prefixesOf(r) == "192.0.2.1/32 192.0.2.3/32" })
		if sessions := s.Status().Sessions; len(sessions) != 1 || sessions[0].Name != "b-older" {
			t.Errorf("sessions %+v, want b-older alone", sessions)
		}

		_, err = s.Set(t.Context(), state([]Session{newer}, all))
		must(t, err)
		eventually(t, "the newer one's routes", func() bool { return prefixesOf(r) == "192.0.2.1/32 192.0.2.2/32" })
		eventually(t, "the newer one's session", func() bool { return s.sessionStatus("a-newer").State == Established })

		_, err = s.Set(t.Context(), state([]Session{older}, all))
		must(t, err)
		eventually(t, "the older one's routes again",
			func() bool { return prefixesOf(r) == "192.0.2.1/32 192.0.2.3/32" })
	})
}

// prefixesOf are the prefixes that a router has routes to.
func prefixesOf(r *frr) string {
	var all []string
	for _, route := range strings.Split(r.kernel(), "\n") {
		prefix, _, _ := strings.Cut(route, " ")
		all = append(all, prefix)
	}
	return strings.Join(all, " ")
}
