package bgp

import (
	"fmt"
	"net"
	"reflect"
	"unsafe"

	"github.com/osrg/gobgp/v4/pkg/server"
)

// acceptFrom makes GoBGP treat connections from conns as connections that its own listener
// accepted. GoBGP has no call or option for that (v4.8.0), so this file sets an unexported field;
// no other file does. It can go once GoBGP accepts connections from a listener of the caller
// (https://github.com/osrg/gobgp/pull/3672). See docs/decisions/0006.
func acceptFrom(s *server.BgpServer, conns chan net.Conn) error {
	field := reflect.ValueOf(s).Elem().FieldByName("acceptCh")
	if !field.IsValid() || field.Type() != reflect.TypeOf(conns) {
		return fmt.Errorf("this version of GoBGP takes no connections from us: BgpServer.acceptCh is %v", field)
	}
	// No goroutine reads the field before Serve, and with ListenPort -1 GoBGP never sets it.
	*(*chan net.Conn)(unsafe.Pointer(field.UnsafeAddr())) = conns
	return nil
}
