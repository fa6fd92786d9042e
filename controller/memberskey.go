package controller

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/internal/base/retry"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

const (
	// keyInterval is how often the controller checks that the speakers' key exists.
	keyInterval = 10 * time.Minute
	// keyField is the Secret's field: a file with one key a line.
	keyField = "keys"
	// keyBytes is the key length of the cipher.
	keyBytes = 32
)

// keepKey creates the speakers' key whenever it is missing, until ctx ends. The role allows
// neither to read nor to change a Secret, so keepKey always tries to create it.
func (c *controller) keepKey(ctx context.Context) {
	if c.Key == (cluster.Name{}) {
		return
	}
	retries := retry.Backoff(time.Second, time.Minute)
	for {
		pause := keyInterval
		switch err := c.writer.createSecret(ctx, newKey(c.Key)); {
		case err == nil:
			c.Log.Info("created the Secret with the members key", "secret", c.Key)
			retries.Reset()
		case apierrors.IsAlreadyExists(err):
			retries.Reset()
		case ctx.Err() == nil:
			c.Log.Warn("Secret with the members key not created", "secret", c.Key, "err", err)
			pause = retries.NextBackOff()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// newKey is a Secret with a random key. Speakers mount it as a file: a line for each key, in base64.
func newKey(name cluster.Name) *corev1.Secret {
	key := make([]byte, keyBytes)
	rand.Read(key) // It never fails, or ends the process.
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{"app.kubernetes.io/name": "fanfare"},
		},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{keyField: []byte(base64.StdEncoding.EncodeToString(key) + "\n")},
	}
}
