package good

import "testing"

func TestPasses(t *testing.T) {
	t.Run("one", func(t *testing.T) {})
	t.Run("two", func(t *testing.T) {})
}

func TestSkips(t *testing.T) {
	t.Log("looked for it")
	t.Skip("there is no router")
}
