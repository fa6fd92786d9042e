package scale

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"

	"golang.org/x/time/rate"
	"k8s.io/client-go/rest"
)

// A traffic counts what clients send to the API server and receive from it.
type traffic struct {
	lists, watches, gets, writes atomic.Int64
	received, sent               atomic.Int64 // bytes, with those of TLS
	falseDeaths                  atomic.Int64 // not traffic, but counted alike: see hollowSpeaker
	speed                        *rate.Limiter
}

// bytesPerSecond is what all clients together receive at most. To decode more at once would take the processor time
// that gossip needs: one megabyte takes a third of a second.
const bytesPerSecond = 3e6

func newTraffic() *traffic { return &traffic{speed: rate.NewLimiter(bytesPerSecond, 1<<20)} }

// wrap returns a configuration whose requests are counted. All clients that are made of it share a connection, as
// those of one process do, and do not share it with others.
func (t *traffic) wrap(cfg *rest.Config) (*rest.Config, error) {
	cfg = rest.CopyConfig(cfg)
	dialer := &net.Dialer{}
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return countedConn{c, t}, nil
	}
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return countedRequests{rt, t} })
	shared, err := rest.TransportFor(cfg)
	return &rest.Config{Host: cfg.Host, Transport: shared, QPS: -1}, err
}

// A countedConn counts bytes.
type countedConn struct {
	net.Conn
	traffic *traffic
}

func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.traffic.received.Add(int64(n))
	if n > 0 && c.traffic.speed.WaitN(context.Background(), n) != nil {
		panic("BUG: a read of more bytes than the limiter allows at once")
	}
	return n, err
}

func (c countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.traffic.sent.Add(int64(n))
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
type Counts struct{ Lists, Watches, Gets, Writes, Received, Sent, FalseDeaths int64 }

func (t *traffic) counts() Counts {
	return Counts{t.lists.Load(), t.watches.Load(), t.gets.Load(), t.writes.Load(), t.received.Load(), t.sent.Load(),
		t.falseDeaths.Load()}
}

func (c Counts) minus(o Counts) Counts {
	return Counts{c.Lists - o.Lists, c.Watches - o.Watches, c.Gets - o.Gets, c.Writes - o.Writes,
		c.Received - o.Received, c.Sent - o.Sent, c.FalseDeaths - o.FalseDeaths}
}

// Requests is the number of all requests.
func (c Counts) Requests() int64 { return c.Lists + c.Watches + c.Gets + c.Writes }
