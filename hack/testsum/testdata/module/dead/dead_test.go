package dead

import "testing"

func TestPanics(t *testing.T) {
	t.Run("deep", func(t *testing.T) { panic("out of luck") })
}

func TestNeverBegins(t *testing.T) {}
