package scale

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// A traffic counts what clients send to the API server and receive from it.
type traffic struct {
	lists, watches, gets, writes atomic.Int64
	received                     atomic.Int64 // bytes, with those of TLS
}

// wrap returns a configuration whose requests are counted. Each client has its own connection.
func (t *traffic) wrap(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	dialer := &net.Dialer{}
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return countedConn{c, &t.received}, nil
	}
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return countedRequests{rt, t} })
	return cfg
}

// A countedConn counts the bytes that are read.
type countedConn struct {
	net.Conn
	received *atomic.Int64
}

func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	return n, err
}

// countedRequests counts requests by kind. A list that is streamed is a list.
type countedRequests struct {
	http.RoundTripper
	traffic *traffic
}

func (c countedRequests) RoundTrip(r *http.Request) (*http.Response, error) {
	q := r.URL.Query()
	switch {
	case r.Method != http.MethodGet:
		c.traffic.writes.Add(1)
	case q.Get("watch") != "true" && q.Get("limit") == "1":
		c.traffic.gets.Add(1) // only the version matters
	case q.Get("watch") != "true" || q.Get("sendInitialEvents") == "true":
		c.traffic.lists.Add(1)
	default:
		c.traffic.watches.Add(1)
	}
	return c.RoundTripper.RoundTrip(r)
}

// WrappedRoundTripper lets client-go find its own.
func (c countedRequests) WrappedRoundTripper() http.RoundTripper { return c.RoundTripper }

// Counts are the counters at one time, or their differences.
type Counts struct{ Lists, Watches, Gets, Writes, Received int64 }

func (t *traffic) counts() Counts {
	return Counts{t.lists.Load(), t.watches.Load(), t.gets.Load(), t.writes.Load(), t.received.Load()}
}

func (c Counts) minus(o Counts) Counts {
	return Counts{c.Lists - o.Lists, c.Watches - o.Watches, c.Gets - o.Gets, c.Writes - o.Writes, c.Received - o.Received}
}
