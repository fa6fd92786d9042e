package vetted

import "testing"

func TestVet(t *testing.T) { t.Errorf("%d", "one") }
