package cluster

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fanfare-lb/fanfare/bgp"
	corev1 "k8s.io/api/core/v1"
)

// SecretNamespace is the namespace of the Secrets that BGPPeers name. The role cannot read
// those of other namespaces.
const SecretNamespace = "fanfare-system"

// maxPassword is what the kernel takes (TCP_MD5SIG_MAXKEYLEN).
const maxPassword = 80

// parseSecret returns the password in a Secret, empty if it is of another namespace or type.
func parseSecret(o *corev1.Secret) (bgp.Password, Problems) {
	var p Problems
	if o.Namespace != SecretNamespace || o.Type != corev1.SecretTypeBasicAuth {
		return "", nil
	}
	password, ok := o.StringData[corev1.BasicAuthPasswordKey]
	if !ok { // stringData comes before data, as in an API server
		password = string(o.Data[corev1.BasicAuthPasswordKey])
	}
	switch {
	case password == "":
		p.Add("data.password", "", "missing; the password in base64, or as it is under stringData")
	case len(password) > maxPassword:
		p.Add("data.password", "", fmt.Sprintf("has %d bytes; TCP MD5 takes %d at most", len(password), maxPassword))
		password = ""
	}
	return bgp.Password(password), p
}

// setSecret keeps a password that is known when its Secret goes, or becomes
// unusable: no slip ends a session.
func (b *Builder) setSecret(name Name, password bgp.Password) {
	if name.Namespace != SecretNamespace {
		return
	}
	gone := password == ""
	if gone == b.secretsGone[name.Name] && (gone || b.secrets[name.Name] == password) {
		return
	}
	b.secretsGone[name.Name] = gone
	if !gone {
		b.secrets[name.Name] = password
	}
	b.peers.changed = true
}

// signedPeers are the peers with their passwords.
func (b *Builder) signedPeers() []*Peer {
	var p []Problem
	peers := slices.Clone(b.peers.sorted())
	used := map[string]bool{}
	for i, peer := range peers {
		if peer.Secret == "" {
			continue
		}
		signed := *peer
		if b.scope.NoSecrets {
			signed.Secret = ""
		} else {
			used[peer.Secret] = true
			signed.Password = b.secrets[peer.Secret]
			p = append(p, b.secretProblems(peer)...)
		}
		peers[i] = &signed
	}
	// A password that no peer names need not be kept in memory.
	maps.DeleteFunc(b.secrets, func(name string, _ bgp.Password) bool { return !used[name] && b.secretsGone[name] })
	b.Report("passwords", p)
	return peers
}

func (b *Builder) secretProblems(peer *Peer) []Problem {
	say := func(message string) []Problem {
		return []Problem{{Object: "BGPPeer " + peer.Name, Field: "spec.passwordSecretRef.name", Value: peer.Secret, Message: message}}
	}
	known, there := b.secrets[peer.Secret]
	switch {
	case known == "":
		return say("there is no Secret of this name, of type kubernetes.io/basic-auth and with a password, in " + SecretNamespace + "; there is no session until there is one")
	case there && b.secretsGone[peer.Secret]:
		return say("the Secret is gone from " + SecretNamespace + ", or no longer has a password; the one before stays in use until the speaker restarts")
	}
	return nil
}
