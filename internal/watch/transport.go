package watch

import (
	"io"
	"net/http"
	"sync/atomic"
)

// A transport counts what it loses: requests without an answer, and answers
// without an end. client-go retries most of that silently.
type transport struct {
	http.RoundTripper
	losses *atomic.Int64
}

// RoundTrip sends a request.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	switch {
	case err == nil:
		resp.Body = &body{ReadCloser: resp.Body, request: r, losses: t.losses}
	case r.Context().Err() == nil:
		t.losses.Add(1)
	}
	return resp, err
}

// WrappedRoundTripper lets client-go find its own.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// A body is that of an answer. A watch is one answer that ends when the connection does.
type body struct {
	io.ReadCloser
	request *http.Request
	losses  *atomic.Int64
	ended   atomic.Bool // well, by us, or as a loss that was counted
}

// Read counts the first error but io.EOF, unless the request was cancelled.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !b.ended.Swap(true) && err != io.EOF && b.request.Context().Err() == nil {
		b.losses.Add(1)
	}
	return n, err
}

// Close also marks the answer as ended: an error of Read after it is no loss.
func (b *body) Close() error {
	b.ended.Store(true)
	return b.ReadCloser.Close()
}
