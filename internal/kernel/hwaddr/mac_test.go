package hwaddr

import (
	"encoding/json"
	"net"
	"testing"
)

func TestMAC(t *testing.T) {
	for _, tt := range []struct {
		address net.HardwareAddr
		ok      bool
		want    string
	}{
		{net.HardwareAddr{2, 0, 0, 0, 0, 10}, true, "02:00:00:00:00:0a"},
		{net.HardwareAddr{2, 0, 0, 0, 0, 0, 0, 10}, false, "00:00:00:00:00:00"},
		{nil, false, "00:00:00:00:00:00"},
	} {
		if m, ok := Of(tt.address); m.String() != tt.want || ok != tt.ok {
			t.Errorf("%s: %s %v, want %s %v", tt.address, m, ok, tt.want, tt.ok)
		}
	}
	b, err := json.Marshal(map[string]MAC{"mac": {2, 0, 0, 0, 0, 5}})
	if err != nil || string(b) != `{"mac":"02:00:00:00:00:05"}` {
		t.Errorf("%s (%v)", b, err)
	}
}
