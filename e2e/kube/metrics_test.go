package kube

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// metricsRights are the objects of the page about metrics, which let Prometheus read them.
func metricsRights(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	must(t, err)
	found := regexp.MustCompile("(?s)```yaml\n(apiVersion: rbac.*?)```").FindSubmatch(page)
	if found == nil {
		t.Fatal("the page has no roles")
	}
	return string(found[1])
}

// scrape reads metrics with a token and returns the status and the text.
func scrape(ctx context.Context, url, token string) (int, string, error) {
	// As Prometheus with insecure_skip_verify: the certificate is self-signed.
	client := &http.Client{
		Timeout: 10 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		},
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// At any but a loopback address, controller and speaker show metrics to accounts with the right
// to read them, as the page about metrics grants it, and to no other client. Probes need no
// token. The programs have only the rights of rbac.yaml.
func TestMetricsNeedRights(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		must(t, f.Admin().Apply(t.Context(), oneNode+
			"---\n{apiVersion: v1, kind: Namespace, metadata: {name: monitoring}}"+
			"\n---\n{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: monitoring, name: prometheus}}"+
			"\n---\n{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: default, name: tenant}}"))
		controller := f.run("controller", "--metrics-address=0.0.0.0:7873", "--health-address=127.0.0.1:7475")
		speaker := f.speaker("--metrics-address=0.0.0.0:7872", "--health-address=127.0.0.1:7474")
		controller.awaitProbe("/readyz", "200 ok")
		speaker.awaitProbe("/readyz", "200 ok")
		prometheus, tenant := f.token("monitoring", "prometheus", nil), f.token("default", "tenant", nil)
		for _, p := range []*program{controller, speaker} {
			url := "https://" + strings.Replace(p.metrics, "0.0.0.0", "127.0.0.1", 1) + "/metrics"
			for token, want := range map[string]int{
				"": 401, "rubbish": 401, prometheus[:len(prometheus)-4] + "AAAA": 401, tenant: 403, prometheus: 403,
			} {
				if got, text, err := scrape(t.Context(), url, token); err != nil || got != want ||
					strings.Contains(text, "fanfare_") && !strings.Contains(text, "fanfare-") {
					t.Errorf("%s with %.8q: %d, want %d: %.200s %v", p.name, token, got, want, text, err)
				}
			}
			if code, _, err := scrape(t.Context(), strings.Replace(url, "https", "http", 1), prometheus); err == nil &&
				code != 400 {
				t.Errorf("%s without encryption: %d", p.name, code)
			}
			if got, err := p.probe("/metrics"); err != nil || !strings.HasPrefix(got, "404") {
				t.Errorf("%s shows metrics at the address for probes: %.100s %v", p.name, got, err)
			}
		}
		must(t, f.Admin().Apply(t.Context(), metricsRights(t)))
		for _, p := range []*program{controller, speaker} {
			url := "https://" + strings.Replace(p.metrics, "0.0.0.0", "127.0.0.1", 1) + "/metrics"
			await(t, time.Minute, "metrics of the "+p.name, func() error {
				code, text, err := scrape(t.Context(), url, prometheus)
				if err == nil && (code != 200 || !strings.Contains(text, "\nfanfare_")) {
					err = fmt.Errorf("%d: %.200s", code, text)
				}
				return err
			})
			if got, _, err := scrape(t.Context(), url, tenant); err != nil || got != 403 {
				t.Errorf("%s shows metrics to a tenant: %d %v", p.name, got, err)
			}
		}
	})
}
