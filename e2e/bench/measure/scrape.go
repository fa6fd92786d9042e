package measure

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Scrape reads the metrics of a process. It adds up the series of a metric.
func Scrape(ctx context.Context, dial func(context.Context) (net.Conn, error)) (map[string]float64, error) {
	c := http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://metrics/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics: %s", resp.Status)
	}
	all := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if name, value, ok := metric(lines.Text()); ok {
			all[name] += value
		}
	}
	return all, lines.Err()
}

// metric parses a line of Prometheus' text format. ok is false for comments.
func metric(line string) (name string, value float64, ok bool) {
	i := strings.LastIndexByte(line, ' ')
	if i < 0 || line[0] == '#' {
		return "", 0, false
	}
	value, err := strconv.ParseFloat(line[i+1:], 64)
	name, _, _ = strings.Cut(line[:i], "{")
	return name, value, err == nil
}
