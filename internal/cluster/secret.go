package cluster

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
)

// DefaultNamespace is the namespace of Fanfare's pods in manifests/. BGPPeers name Secrets in
// the namespace of the pods, which an overlay or a chart may change.
const DefaultNamespace = "fanfare-system"

// maxPassword is the kernel's limit (TCP_MD5SIG_MAXKEYLEN).
const maxPassword = 80

// parseSecret returns the password in a Secret, empty if the Secret is of another type.
func parseSecret(o *corev1.Secret) (bgp.Password, Problems) {
	var p Problems
	if o.Type != corev1.SecretTypeBasicAuth {
		return "", nil
	}
	password, ok := o.StringData[corev1.BasicAuthPasswordKey]
	if !ok { // stringData takes precedence over data, as in an API server
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

// passwords are the passwords that BGPPeers name, by the names of the Secrets.
type passwords struct {
	known   map[string]bgp.Password // a deleted one stays while a peer needs it
	gone    map[string]bool         // names without a Secret, or without a password in it
	refused map[string]bool         // names that this process may not read
}

func newPasswords() passwords {
	return passwords{map[string]bgp.Password{}, map[string]bool{}, map[string]bool{}}
}

// set keeps a known password when its Secret is deleted or becomes unusable, so that no slip
// ends a session. It reports whether anything has changed.
func (w *passwords) set(name string, password bgp.Password) bool {
	gone := password == ""
	if gone == w.gone[name] && (gone || w.known[name] == password) {
		return false
	}
	w.gone[name] = gone
	if !gone {
		w.known[name] = password
	}
	return true
}

// SecretNames returns the sorted names of the Secrets that this process needs: those of peers that
// select the Node of the scope. If changed is false, they are the same as for the last snapshot.
func (b *Builder) SecretNames() (names []string, changed bool) {
	if b.scope.NoSecrets || !b.peers.changed && !b.nodeLabels {
		return nil, false
	}
	for _, peer := range b.peers.objects {
		if peer.Secret != "" && b.needsSecret(peer) {
			names = append(names, peer.Secret)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), true
}

// needsSecret reports whether this process opens sessions of a peer.
func (b *Builder) needsSecret(peer *Peer) bool {
	if b.scope.SecretsOf == "" {
		return true
	}
	node := b.nodes.objects[b.scope.SecretsOf]
	return node != nil && peer.NodeSelector.Matches(node.Labels)
}

// RefuseSecret records whether the API server lets this process read a Secret.
func (b *Builder) RefuseSecret(name string, refused bool) {
	if refused != b.passwords.refused[name] {
		b.passwords.refused[name], b.peers.changed = refused, true
	}
}

// signedPeers returns the peers with their passwords.
func (b *Builder) signedPeers() []*Peer {
	var p []Problem
	peers := slices.Clone(b.peers.sorted())
	used := map[string]bool{}
	for i, peer := range peers {
		if peer.Secret == "" {
			continue
		}
		signed := *peer
		switch {
		case b.scope.NoSecrets:
			signed.Secret = ""
		case b.needsSecret(peer):
			used[peer.Secret] = true
			signed.Password = b.passwords.known[peer.Secret]
			if message := b.passwords.problem(peer.Secret, b.scope.namespace()); message != "" {
				p = append(p, Problem{
					Object: Named("BGPPeer", peer.Name), Field: "spec.passwordSecretRef.name", Value: peer.Secret,
					Message: message,
				})
			}
		}
		peers[i] = &signed
	}
	// A password that no peer names is not kept in memory.
	maps.DeleteFunc(b.passwords.known, func(name string, _ bgp.Password) bool {
		return !used[name] && b.passwords.gone[name]
	})
	b.Report("passwords", p)
	return peers
}

// allowSecret is the command by which an administrator lets speakers read a Secret. The speakers of
// all nodes share one account.
const allowSecret = "kubectl -n %[1]s create role bgp-password-%[2]s --verb=list,watch --resource=secrets " +
	"--resource-name=%[2]s" +
	" && kubectl -n %[1]s create rolebinding bgp-password-%[2]s --role=bgp-password-%[2]s " +
	"--serviceaccount=%[1]s:speaker"

// problem returns what is wrong with a Secret that a peer names, empty if nothing is.
func (w *passwords) problem(name, namespace string) string {
	switch allow := fmt.Sprintf(allowSecret, namespace, name); {
	case w.refused[name] && w.known[name] == "":
		return "the speaker may not read this Secret, so there is no session; allow it: " + allow
	case w.refused[name]:
		return "the speaker may no longer read this Secret; the password before stays in use until the speaker " +
			"restarts; allow it: " + allow
	case w.known[name] == "":
		return "there is no Secret of this name, of type kubernetes.io/basic-auth and with a password, in " +
			namespace +
			"; there is no session until there is one"
	case w.gone[name]:
		return "the Secret is gone from " + namespace +
			", or no longer has a password; the one before stays in use until the speaker restarts"
	}
	return ""
}
