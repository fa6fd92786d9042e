package controller

import (
	"bytes"
	"context"
	"encoding/base64"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// The leader creates the speakers' key once, does not change an existing one, and creates
// it again when it was deleted.
func TestMembersKey(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const path = "/api/v1/namespaces/fanfare-system/secrets/fanfare-members"
		s := newStore(t)
		s.populate(t)
		o := options(s)
		o.Key = cluster.Name{Namespace: "fanfare-system", Name: "fanfare-members"}
		c, err := newController(o)
		if err != nil {
			t.Fatal(err)
		}
		c.source = s.source()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { c.lead(ctx); close(done) }()
		key := func() []byte {
			<-time.After(keyInterval + time.Second)
			s.mu.Lock()
			defer s.mu.Unlock()
			return into[corev1.Secret](t, s.objects[path]).Data[keyField]
		}
		first := key()
		text, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(first)))
		if err != nil || len(text) != keyBytes {
			t.Errorf("key of %d bytes: %v", len(text), err)
		}
		if !bytes.Equal(key(), first) {
			t.Error("a key that was there is another one")
		}
		s.mu.Lock()
		s.remove(path)
		s.mu.Unlock()
		if again := key(); len(again) == 0 || bytes.Equal(again, first) {
			t.Errorf("after it was deleted the key is %d bytes", len(again))
		}
		cancel()
		<-done
	})
}
