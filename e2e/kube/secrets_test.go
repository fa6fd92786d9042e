package kube

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// signedRouters are a router of this node and one of another rack, each with a password.
const signedRouters = `
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor9}
spec: {peerAddress: 198.51.100.9, sourceAddress: 198.51.100.1, peerASN: 65000, myASN: 65001, passwordSecretRef: {name: tor9}}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor8}
spec: {peerAddress: 198.51.100.8, peerASN: 65000, myASN: 65001, passwordSecretRef: {name: other}, nodeSelector: {matchLabels: {rack: far}}}
`

func bgpPassword(name, password string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: fanfare-system, name: %s}, type: "+
		"kubernetes.io/basic-auth, stringData: {password: %s}}", name, password)
}

// tokenKubeconfig writes a kubeconfig with a token that is bound to a speaker's pod.
func (f *fanfare) tokenKubeconfig(pod string) string {
	f.Helper()
	k := clientcmdapi.NewConfig()
	k.Clusters["e2e"] = &clientcmdapi.Cluster{Server: f.Host(), CertificateAuthorityData: f.pki.ca}
	k.AuthInfos["speaker"] = &clientcmdapi.AuthInfo{Token: f.token("fanfare-system", "speaker",
		&authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod})}
	k.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: "speaker"}
	k.CurrentContext = "e2e"
	path := filepath.Join(f.dir, pod+".kubeconfig")
	must(f.T, clientcmd.WriteToFile(*k, path))
	return path
}

// awaitProblem waits until the status has a problem of an object with this text, or with an
// empty text none, and returns its message.
func (f *fanfare) awaitProblem(object, text string) (message string) {
	f.Helper()
	await(f.T, time.Minute, object+": "+text, func() error {
		s, err := f.status()
		if err != nil {
			return err
		}
		for _, p := range s.Problems {
			if p.Object == object && (text == "" || strings.Contains(p.Message, text)) {
				if message = p.Message; text == "" {
					return errors.New(message)
				}
				return nil
			}
		}
		if text != "" {
			return fmt.Errorf("problems %v", s.Problems)
		}
		return nil
	})
	return message
}

// A speaker with the token of its pod reads the passwords that a role names, by the command of
// the problem that it reports, and no other Secret of the namespace. A Secret that is created
// later and one that changes take effect: FRR has the same passwords.
func TestSpeakerReadsNamedSecrets(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		nstest.Node(t).Addr("lo", "198.51.100.1/32", "198.51.100.9/32")
		node, _, _ := strings.Cut(routedNode, "---")
		must(t, f.Admin().Apply(t.Context(), node+"---"+signedRouters+"---\n"+bgpPassword("other", "secret")))
		must(t, f.Admin().Create(t.Context(), speakerPod("n1")))
		f.speaker("--kubeconfig=" + f.tokenKubeconfig("speaker-n1"))

		problem := f.awaitProblem("BGPPeer tor9", "the speaker may not read this Secret, so there is no session")
		f.awaitProblem("BGPPeer tor8", "") // The router is not of this node.
		_, commands, found := strings.Cut(problem, "allow it: ")
		if !found {
			t.Fatal(problem)
		}
		for command := range strings.SplitSeq(commands, " && ") {
			args := strings.Fields(command)
			if _, err := f.kubectl(args[1:]...); err != nil {
				t.Fatal(err)
			}
		}
		f.awaitProblem("BGPPeer tor9", "there is no Secret of this name")
		router := f.bgpd("neighbor 198.51.100.1 password first")
		must(t, f.Admin().Apply(t.Context(), bgpPassword("tor9", "first")))
		f.awaitEvent("bgppeer/tor9", "SessionEstablished", "node n1 has a session")
		f.awaitProblem("BGPPeer tor9", "")

		must(t, router.Process.Kill())
		f.awaitEventCount("bgppeer/tor9", "SessionLost", 1)
		f.bgpd("neighbor 198.51.100.1 password second")
		must(t, f.Admin().Apply(t.Context(), bgpPassword("tor9", "second")))
		f.awaitEventCount("bgppeer/tor9", "SessionEstablished", 2)

		c := f.withToken("Pod", "speaker-n1")
		secrets := c.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(
			"fanfare-system")
		named, err := secrets.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=tor9"})
		if err != nil || len(named.Items) != 1 {
			t.Errorf("the Secret that the role names: %v", err)
		}
		for _, selector := range []string{"", "metadata.name=other", "metadata.name!=tor9",
			"type=kubernetes.io/basic-auth"} {
			_, err := secrets.List(t.Context(), metav1.ListOptions{FieldSelector: selector})
			f.expectForbiddenBy("list Secrets with "+selector, err)
			w, err := secrets.Watch(t.Context(), metav1.ListOptions{FieldSelector: selector})
			if err == nil {
				w.Stop()
			}
			f.expectForbiddenBy("watch Secrets with "+selector, err)
		}
		for _, name := range []string{"other", "tor9"} { // The verb get is not needed.
			_, err := secrets.Get(t.Context(), name, metav1.GetOptions{})
			f.expectForbiddenBy("get Secret "+name, err)
		}
		if out, err := exec.CommandContext(t.Context(), f.binary, "status", "--json", "--run-dir",
			f.runDir()).CombinedOutput(); err != nil || regexp.MustCompile("first|second").Match(out) {
			t.Errorf("the status shows a password, or fails: %v", err)
		}
	})
}
