package bgp

import (
	"fmt"
	"net"
	"reflect"
	"unsafe"

	"github.com/osrg/gobgp/v4/pkg/server"
)

// acceptFrom makes GoBGP take the connections that come through conns for connections that its own
// listener accepted. GoBGP exports no call for that, and neither do its options (v4.8.0): this file is
// the only one that reaches into it. It goes once GoBGP accepts from a listener of the caller's
// (https://github.com/osrg/gobgp/pull/3672). See docs/decisions/0006.
func acceptFrom(s *server.BgpServer, conns chan net.Conn) error {
	field := reflect.ValueOf(s).Elem().FieldByName("acceptCh")
	if !field.IsValid() || field.Type() != reflect.TypeOf(conns) {
		return fmt.Errorf("this version of GoBGP takes no connections from us: BgpServer.acceptCh is %v", field)
	}
	// Before Serve runs no goroutine reads the field, and with ListenPort -1 GoBGP never sets it.
	*(*chan net.Conn)(unsafe.Pointer(field.UnsafeAddr())) = conns
	return nil
}
