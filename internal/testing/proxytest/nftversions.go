package proxytest

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// NFTVersions are those of Debian 11, 12 and 13.
var NFTVersions = []string{"0.9.8", "1.0.6", "1.1.3"}

// NFTPrograms returns the program of each version. hack/nft.sh, below root, unpacks them once into the user's cache
// directory.
func NFTPrograms(t testing.TB, root string) map[string]string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "fanfare", "nft")
	if out, err := exec.CommandContext(t.Context(), filepath.Join(root, "hack/nft.sh"),
		dir).CombinedOutput(); err != nil {
		nstest.Missing(t, "hack/nft.sh cannot unpack the packages of other Debian releases: "+err.Error()+"\n"+
			string(out))
	}
	all := make(map[string]string)
	for _, v := range NFTVersions {
		all[v] = filepath.Join(dir, v, "nft")
	}
	return all
}

// KubeProxyTable is what kube-proxy 1.37 wrote for three Services: one of two endpoints, one without, and one of type
// LoadBalancer with affinity and source ranges. nft before 1.0.1 cannot load it.
//
//go:embed kube-proxy.nft
var KubeProxyTable string
