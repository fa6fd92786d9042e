package bgp

import (
	"net"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/server"
)

// It fails when a new version of GoBGP has another field.
func TestGoBGPAcceptsOurConnections(t *testing.T) {
	if err := acceptFrom(server.NewBgpServer(), make(chan net.Conn)); err != nil {
		t.Fatal(err)
	}
}
