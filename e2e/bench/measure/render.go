package measure

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"text/template"
	"time"
)

// words are the template functions that all pages share.
var words = template.FuncMap{
	"date":      func(t time.Time) string { return t.UTC().Format(time.DateOnly) },
	"minutes":   minutes,
	"thousands": Thousands,
	"pretty":    Pretty,
	"p50":       func(s Sample) string { return Pretty(s.Quantile(0.5)) },
	"p99":       func(s Sample) string { return Pretty(s.Quantile(0.99)) },
	"megabytes": func(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/1e6) },
}

// Render executes a template with the shared functions and the page's own.
func Render(document string, own template.FuncMap, data any) (string, error) {
	all := maps.Clone(words)
	maps.Copy(all, own)
	t, err := template.New("document").Funcs(all).Parse(document)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, data)
	return b.String(), err
}

func minutes(d time.Duration) string {
	if n := math.Ceil(d.Minutes()); n != 1 {
		return fmt.Sprintf("%.0f minutes", n)
	}
	return "a minute"
}

// Thousands formats a non-negative number with separators.
func Thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return Thousands(n/1000) + fmt.Sprintf(",%03d", n%1000)
}
