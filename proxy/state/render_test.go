package state_test

import (
	"path/filepath"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// The golden files hold a state in words and what the kernel gets for it.
func TestRenderGolden(t *testing.T) {
	for name, s := range proxytest.GoldenStates() {
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		proxytest.Golden(t, filepath.Join("testdata", name+".golden"),
			s.String()+"--\n"+proxytest.ElementsText(state.RenderState(s)))
	}
}
