package hwaddr

import (
	"encoding/json"
	"testing"
)

func TestMAC(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"02:00:00:00:00:0A", "02:00:00:00:00:0a"},
		{"0200.0000.000a", "02:00:00:00:00:0a"},
		{"02:00:00:00:00:00:00:0a", "hardware address 02:00:00:00:00:00:00:0a has 8 bytes, not 6"},
		{"eth0", "address eth0: invalid MAC address"},
	} {
		m, err := Parse(tt.text)
		got := m.String()
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%q: %q, want %q", tt.text, got, tt.want)
		}
	}
	b, err := json.Marshal(map[string]MAC{"mac": {2, 0, 0, 0, 0, 5}})
	var back map[string]MAC
	if err == nil {
		err = json.Unmarshal(b, &back)
	}
	if err != nil || string(b) != `{"mac":"02:00:00:00:00:05"}` || back["mac"] != (MAC{2, 0, 0, 0, 0, 5}) {
		t.Errorf("%s becomes %v (%v)", b, back, err)
	}
}
