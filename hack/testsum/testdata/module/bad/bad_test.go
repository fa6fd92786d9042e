package bad

import "testing"

func TestPasses(t *testing.T) {}

func TestFails(t *testing.T) {
	t.Run("one", func(t *testing.T) { t.Error("got 1, want 2") })
	t.Run("two", func(t *testing.T) {})
}
