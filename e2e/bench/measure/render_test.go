package measure

import (
	"testing"
	"text/template"
	"time"
)

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{7: "7", 999: "999", 1000: "1,000", 12034: "12,034", 1234567: "1,234,567"} {
		if got := Thousands(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

// A page has its own functions and the shared ones; an unknown function is an error.
func TestRender(t *testing.T) {
	data := struct {
		N    int
		Took time.Duration
	}{12000, 61 * time.Second}
	got, err := Render("{{thousands .N}} {{twice .N}} {{minutes .Took}}",
		template.FuncMap{"twice": func(n int) int { return 2 * n }}, data)
	if want := "12,000 24000 2 minutes"; got != want || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"{{.M}}", "{{", "{{nothing}}"} {
		if got, err := Render(bad, nil, data); err == nil {
			t.Errorf("%q became %q", bad, got)
		}
	}
}
