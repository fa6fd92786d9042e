package proxytest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/nstest"
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
	if out, err := exec.CommandContext(t.Context(), filepath.Join(root, "hack/nft.sh"), dir).CombinedOutput(); err != nil {
		nstest.Missing(t, "hack/nft.sh cannot unpack the packages of other Debian releases: "+err.Error()+"\n"+string(out))
	}
	all := make(map[string]string)
	for _, v := range NFTVersions {
		all[v] = filepath.Join(dir, v, "nft")
	}
	return all
}

// KubeProxyTable is another program's, in the form of kube-proxy's: maps of verdicts, and sets, by address,
// protocol and port, with comments.
const KubeProxyTable = `table ip kube-proxy {
	comment "rules for kube-proxy"
	set cluster-ips { type ipv4_addr; comment "Active ClusterIPs"; elements = { 10.96.0.1 } }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; comment "vmap to drop or reject packets to services with no endpoints"; elements = { 10.96.0.2 . tcp . 80 comment "default/a:p80" : goto reject-chain } }
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; comment "ClusterIP, ExternalIP and LoadBalancer IP traffic"; elements = { 10.96.0.1 . tcp . 443 : goto service-1 } }
	set affinity-1 { type ipv4_addr; flags dynamic,timeout; timeout 3h; }
	chain reject-chain { reject; }
	chain endpoint-1 { update @affinity-1 { ip saddr }; meta l4proto tcp dnat to 10.244.1.2:443; }
	chain service-1 { ip daddr 10.96.0.1 tcp dport 443 ip saddr != 10.244.0.0/16 meta mark set meta mark or 0x4000; ip saddr @affinity-1 goto endpoint-1; numgen random mod 1 vmap { 0 : goto endpoint-1 }; }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; ip daddr @cluster-ips drop; }
	chain filter-input { type filter hook input priority -110; policy accept; ct state new ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
}
`
