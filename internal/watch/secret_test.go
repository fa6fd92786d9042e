package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/clustertest"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

func newSecret(name, password string) *corev1.Secret {
	s := &corev1.Secret{Type: corev1.SecretTypeBasicAuth, Data: map[string][]byte{"password": []byte(password), "username": []byte("anyone")}}
	s.Namespace, s.Name = cluster.SecretNamespace, name
	s.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": password}
	return s
}

func signedPeer(name, addr string) *v1alpha1.BGPPeer {
	p := clustertest.Peer(name, addr)
	p.Spec.PasswordSecretRef = &v1alpha1.PasswordSecretRef{Name: name}
	return p
}

// passwords are those of the peers, and what is wrong, as text.
func passwords(s *cluster.Snapshot) string {
	var b strings.Builder
	for _, p := range s.Peers {
		fmt.Fprintf(&b, "%s=%s ", p.Name, string(p.Password))
	}
	for _, p := range s.Problems {
		fmt.Fprintf(&b, "(%s)", p.Message)
	}
	return b.String()
}

// A password follows its Secret, touches no other peer, and outlives a Secret that
// was deleted.
func TestSecretsOfAnAPIServer(t *testing.T) {
	elsewhere := newSecret("tor1", "elsewhere")
	elsewhere.Namespace = "default"
	s := newAPIServer(t, signedPeer("tor1", "10.0.0.1"), clustertest.Peer("tor2", "10.0.0.2"), newSecret("tor1", "sesame"), elsewhere)
	a := s.open(Options{})
	await := func(want string) *cluster.Snapshot {
		t.Helper()
		return awaitAPI(t, a, func(s *cluster.Snapshot) string {
			if got := passwords(s); got != want {
				return fmt.Sprintf("%s, want %s", got, want)
			}
			return ""
		})
	}
	before := await("tor1=sesame tor2= ")
	s.set(newSecret("tor1", "simsim"), newSecret("unused", "x"))
	after := await("tor1=simsim tor2= ")
	if before.Peers[1] != after.Peers[1] {
		t.Error("the other peer is another one")
	}
	s.delete(cluster.Key{Kind: "Secret", Name: cluster.Name{Namespace: cluster.SecretNamespace, Name: "tor1"}})
	await("tor1=simsim tor2= (the Secret is gone from fanfare-system, or no longer has a password; the one before stays in use until the speaker restarts)")
	s.set(newSecret("tor1", "sesame"))
	await("tor1=sesame tor2= ")
	if s.asked("list secrets")+s.asked("stream secrets") == 0 {
		t.Error("no request for Secrets")
	}

	blind := s.open(Options{SkipSecrets: true})
	if got := passwords(blind.Snapshot()); got != "tor1= tor2= " || blind.Snapshot().Peers[0].Secret != "" {
		t.Errorf("without Secrets: %s", got)
	}
}

// A snapshot file has no password in it, and the peer that is read from it says that one is
// wanted.
func TestSnapshotFileHasNoPasswords(t *testing.T) {
	snap := cluster.Parse(signedPeer("tor1", "10.0.0.1"), newSecret("tor1", "sesame"))
	if got := passwords(snap); got != "tor1=sesame " {
		t.Fatal(got)
	}
	file := filepath.Join(t.TempDir(), "cluster.json")
	must(t, WriteSnapshot(file, snap))
	text, err := os.ReadFile(file)
	must(t, err)
	if s := string(text) + fmt.Sprintf("%v %+v %#v %q", *snap.Peers[0], *snap.Peers[0], *snap.Peers[0], snap.Peers[0].Password); strings.Contains(s, "sesame") {
		t.Errorf("shown: %s", s)
	}
	got, _, err := ReadSnapshot(file)
	must(t, err)
	if p := got.Peers[0]; p.Secret != "tor1" || p.Password != "" {
		t.Errorf("recalled: %q, %q", p.Secret, string(p.Password))
	}
}
