package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
)

// A Stored value is an object in etcd.
type Stored struct {
	Key   string // such as /registry/services/specs/NAMESPACE/NAME
	Value []byte // as the API server writes it: protobuf with its prefix, or JSON for a custom resource
}

// maxOperations is how many operations etcd accepts in one transaction, by default.
const maxOperations = 128

// Store writes objects to etcd while the API server is down, and starts it again: its controllers would otherwise
// see some kinds before others, and repair what is not complete yet. The API server does not check these objects, and
// adds nothing, so that they must be complete, with a UID.
func (c *Cluster) Store(ctx context.Context, objects []Stored) error {
	c.APIServer.Kill()
	if err := c.store(ctx, objects); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	return c.StartAPIServer(ctx)
}

func (c *Cluster) store(ctx context.Context, objects []Stored) error {
	transport := &http.Transport{}
	if c.namespace != nil {
		transport.DialContext = c.dial
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for chunk := range slices.Chunk(objects, maxOperations) {
		if err := c.storeOnce(ctx, client, chunk); err != nil {
			return fmt.Errorf("%s to %s: %w", chunk[0].Key, chunk[len(chunk)-1].Key, err)
		}
	}
	return nil
}

// storeOnce writes objects in one transaction, by etcd's JSON gateway.
func (c *Cluster) storeOnce(ctx context.Context, client *http.Client, objects []Stored) error {
	// JSON has bytes in base64.
	type put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	}
	type operation struct {
		Put put `json:"requestPut"`
	}
	var txn struct {
		Success []operation `json:"success"`
	}
	for _, o := range objects {
		txn.Success = append(txn.Success, operation{put{[]byte(o.Key), o.Value}})
	}
	body, err := json.Marshal(txn)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.etcdURL(c.ports[1])+"/v3/kv/txn",
		bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body) // also keeps the connection
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return err
}
