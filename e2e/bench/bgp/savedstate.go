package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/watch"
	"github.com/fanfare-lb/fanfare/speaker/rundir"
)

// fanfareClaim is what the controller of a cluster writes: without it, a speaker that reads an API
// server or a saved state does not announce the address.
const fanfareClaim = `---
apiVersion: fanfare.io/v1alpha1
kind: AddressClaim
metadata: {name: %[2]s}
spec: {address: %[2]s, pool: all, announce: BGP, holders: [{namespace: bench, name: s%[1]d}]}
`

// kubeconfig is the name of a file. Nothing listens on the port: the node of a world has no API
// server, and refuses the connection.
const (
	kubeconfig     = "kubeconfig"
	kubeconfigText = `apiVersion: v1
kind: Config
current-context: bench
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
clusters: [{name: bench, cluster: {server: "https://127.0.0.1:6443"}}]
users: [{name: bench, user: {}}]
`
)

// save writes the state that a speaker would have saved with these objects.
func (f *fanfare) save(w *world, routes int, objects string) error {
	var claims strings.Builder
	for i := range routes {
		fmt.Fprintf(&claims, fanfareClaim, i, vip(i))
	}
	err := errors.Join(
		os.WriteFile(w.path(kubeconfig), []byte(kubeconfigText), 0o600),
		os.WriteFile(filepath.Join(f.dir, "all.yaml"), []byte(objects), 0o644),
		os.WriteFile(filepath.Join(f.dir, "claims.yaml"), []byte(claims.String()), 0o644),
	)
	if err != nil {
		return err
	}
	// The garbage of this program must not cost the speaker time.
	defer debug.FreeOSMemory()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	files, err := watch.OpenFiles(ctx, f.dir, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	s := files.Snapshot()
	if len(s.Problems) != 0 {
		return fmt.Errorf("state to save: %s", s.Problems[0])
	}
	saved := rundir.Saved(f.runDir)
	if err := saved.Save(s); err != nil {
		return err
	}
	now, err := saved.Clock()
	if err != nil {
		return err
	}
	return saved.Confirm(now)
}
