package watch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

func newSecret(name, password string) *corev1.Secret {
	s := &corev1.Secret{
		Type: corev1.SecretTypeBasicAuth, Data: map[string][]byte{
			"password": []byte(password), "username": []byte("anyone"),
		},
	}
	s.Namespace, s.Name = cluster.DefaultNamespace, name
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
	s := newAPIServer(t, signedPeer("tor1", "10.0.0.1"), clustertest.Peer("tor2", "10.0.0.2"),
		newSecret("tor1", "sesame"), elsewhere)
	a := s.open(Options{})
	await := func(want string) *cluster.Snapshot { t.Helper(); return awaitPasswords(t, a, want) }
	before := await("tor1=sesame tor2= ")
	s.set(newSecret("tor1", "simsim"), newSecret("unused", "x"))
	after := await("tor1=simsim tor2= ")
	if before.Peers[1] != after.Peers[1] {
		t.Error("the other peer is another one")
	}
	s.delete(cluster.Key{Kind: "Secret", Name: cluster.Name{Namespace: cluster.DefaultNamespace, Name: "tor1"}})
	await("tor1=simsim tor2= (the Secret is gone from fanfare-system, or no longer has a password; the one before " +
		"stays in use until the speaker restarts)")
	s.set(newSecret("tor1", "sesame"))
	await("tor1=sesame tor2= ")
	if s.asked("list secrets")+s.asked("stream secrets") == 0 {
		t.Error("no request for Secrets")
	}

	blind := s.open(Options{Scope: cluster.Scope{NoSecrets: true}})
	if got := passwords(blind.Snapshot()); got != "tor1= tor2= " || blind.Snapshot().Peers[0].Secret != "" {
		t.Errorf("without Secrets: %s", got)
	}
}

// awaitPasswords waits until the snapshot has these passwords and problems.
func awaitPasswords(t *testing.T, a *API, want string) *cluster.Snapshot {
	t.Helper()
	return awaitAPI(t, a, func(s *cluster.Snapshot) string {
		if got := passwords(s); got != want {
			return fmt.Sprintf("%s, want %s", got, want)
		}
		return ""
	})
}

// A Secret that the role does not name is a Problem of its peer, with the command that names
// it. It delays nothing else, at the start and later, and is read once the role names it.
func TestSecretThatMayNotBeRead(t *testing.T) {
	s := newAPIServer(t, signedPeer("tor1", "10.0.0.1"), signedPeer("tor2", "10.0.0.2"), newSecret("tor1", "sesame"),
		newSecret("tor2", "simsim"))
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "tor1", errors.New("by the role"))
	s.refuse("secrets tor1", refused)
	a := s.open(Options{})
	const allow = "; allow it: kubectl -n fanfare-system create role bgp-password-tor1 --verb=list,watch " +
		"--resource=secrets --resource-name=tor1" +
		" && kubectl -n fanfare-system create rolebinding bgp-password-tor1 --role=bgp-password-tor1 " +
		"--serviceaccount=fanfare-system:speaker)"
	awaitPasswords(t, a, "tor1= tor2=simsim (the speaker may not read this Secret, so there is no session"+allow)
	s.set(newSecret("tor2", "rotated"))
	awaitPasswords(t, a, "tor1= tor2=rotated (the speaker may not read this Secret, so there is no session"+allow)
	s.refuse("secrets tor1", nil)
	awaitPasswords(t, a, "tor1=sesame tor2=rotated ")
	s.refuse("secrets tor1", refused)
	s.drop() // The watch ends.
	awaitPasswords(t, a, "tor1=sesame tor2=rotated (the speaker may no longer read this Secret; the password before "+
		"stays in use until the speaker restarts"+allow)
	s.refuse("secrets tor1", nil)
	awaitPasswords(t, a, "tor1=sesame tor2=rotated ")
}

// A speaker reads the Secrets of peers that select its node, and follows the peers, the
// node's labels, and Secrets that appear later.
func TestSecretsOfOwnPeers(t *testing.T) {
	node := func(rack string) *corev1.Node {
		n := &corev1.Node{}
		n.Name, n.Labels = "n1", map[string]string{"rack": rack}
		return n
	}
	peer := func(name, addr, rack string) *v1alpha1.BGPPeer {
		p := signedPeer(name, addr)
		p.Spec.NodeSelector = &v1alpha1.LabelSelector{
			MatchLabels: map[string]v1alpha1.LabelValue{"rack": v1alpha1.LabelValue(rack)}}
		return p
	}
	s := newAPIServer(t, node("a"), peer("tor1", "10.0.0.1", "a"), peer("tor2", "10.0.0.2", "b"),
		newSecret("tor1", "sesame"), newSecret("tor2", "simsim"))
	a := s.open(Options{NodeName: "n1", Scope: cluster.Scope{SecretsOf: "n1"}})
	awaitPasswords(t, a, "tor1=sesame tor2= ")
	if n := s.asked("list secrets tor2") + s.asked("stream secrets tor2"); n != 0 {
		t.Errorf("%d requests for the Secret of a peer that does not select the node", n)
	}
	s.set(node("b"))
	awaitPasswords(t, a, "tor1= tor2=simsim ")
	s.set(newSecret("tor1", "rotated"))
	s.set(node("a"))
	awaitPasswords(t, a, "tor1=rotated tor2= ")
	later := peer("tor3", "10.0.0.3", "a")
	s.set(later)
	awaitPasswords(t, a, "tor1=rotated tor2= tor3= (there is no Secret of this name, of type "+
		"kubernetes.io/basic-auth and with a password, in fanfare-system; there is no session until there is one)")
	s.set(newSecret("tor3", "late"))
	awaitPasswords(t, a, "tor1=rotated tor2= tor3=late ")
	s.delete(cluster.Key{Kind: "BGPPeer", Name: cluster.Name{Name: "tor3"}})
	awaitPasswords(t, a, "tor1=rotated tor2= ")
	s.delete(cluster.Key{Kind: "Secret", Name: cluster.Name{Namespace: cluster.DefaultNamespace, Name: "tor3"}})
	s.set(later) // What an earlier watch knew is forgotten.
	awaitPasswords(t, a, "tor1=rotated tor2= tor3= (there is no Secret of this name, of type "+
		"kubernetes.io/basic-auth and with a password, in fanfare-system; there is no session until there is one)")
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
	if s := string(text) + fmt.Sprintf("%v %+v %#v %q", *snap.Peers[0], *snap.Peers[0], *snap.Peers[0],
		snap.Peers[0].Password); strings.Contains(s, "sesame") {
		t.Errorf("shown: %s", s)
	}
	got, err := ReadSnapshot(file)
	must(t, err)
	if p := got.Peers[0]; p.Secret != "tor1" || p.Password != "" {
		t.Errorf("recalled: %q, %q", p.Secret, string(p.Password))
	}
}

// Passwords are in the namespace of the pods, wherever an overlay puts them.
func TestSecretsOfAnotherNamespace(t *testing.T) {
	moved := newSecret("tor1", "moved")
	moved.Namespace = "lb-system"
	s := newAPIServer(t, signedPeer("tor1", "10.0.0.1"), newSecret("tor1", "default"), moved)
	awaitPasswords(t, s.open(Options{Scope: cluster.Scope{Namespace: "lb-system"}}), "tor1=moved ")
	s.delete(cluster.Key{Kind: "Secret", Name: cluster.Name{Namespace: "lb-system", Name: "tor1"}})
	awaitPasswords(t, s.open(Options{Scope: cluster.Scope{Namespace: "lb-system"}}),
		"tor1= (there is no Secret of this name, of type kubernetes.io/basic-auth and with a password, in lb-system; "+
			"there is no session until there is one)")
}
