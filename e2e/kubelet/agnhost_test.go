package kubelet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
)

// shellPrograms run in the pods of Kubernetes' own tests, by `kubectl exec`.
var shellPrograms = map[string]string{
	"/bin/sh": "/bin/dash", "/bin/nc": "/bin/nc.openbsd", "/bin/curl": "/usr/bin/curl", "/bin/wget": "/usr/bin/wget",
	"/bin/cat": "/bin/cat", "/bin/date": "/bin/date", "/bin/seq": "/usr/bin/seq", "/bin/sleep": "/bin/sleep",
}

// writeAgnhost writes an image with several names, of agnhost and programs of this machine with their libraries.
func writeAgnhost(ctx context.Context, path, agnhost string, names []string) error {
	// GNU wget tries again 20 times, and busybox's, in the images that this one stands for, never does.
	files := []file{{"/etc/wgetrc", 0o644, []byte("tries = 1\n")}}
	contents := map[string]string{"/agnhost": agnhost}
	var linked []string
	for inside, outside := range shellPrograms {
		contents[inside] = outside
		linked = append(linked, outside)
	}
	libraries, err := librariesOf(ctx, linked)
	if err != nil {
		return err
	}
	for _, l := range libraries {
		contents[l] = l
	}
	for inside, outside := range contents {
		text, err := os.ReadFile(outside)
		if err != nil {
			return err
		}
		files = append(files, file{inside, 0o755, text})
	}
	archive, err := imageOf(names, []string{"/agnhost", "pause"}, files...)
	if err != nil {
		return err
	}
	return os.WriteFile(path, archive, 0o644)
}

// library is a path in the output of ldd.
var library = regexp.MustCompile(`/\S+\.so\S*`)

// librariesOf returns the paths by which programs find their libraries.
func librariesOf(ctx context.Context, programs []string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "ldd", programs...).Output()
	if err != nil {
		return nil, fmt.Errorf("ldd: %w", err)
	}
	return library.FindAllString(string(out), -1), nil
}

// serveNames serves the names of Services to pods until the test ends.
func (c *cluster) serveNames(t *testing.T) error {
	conn, err := c.Namespace(controlPlane).ListenUDP(t.Context(), netip.AddrPortFrom(apiServer, 53).String())
	if err != nil {
		return err
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		answer := c.resolve(context.Background(), query)
		if err := w.WriteMsg(answer); err != nil {
			t.Logf("DNS: %v: %v", query.Question, err)
		}
	})}
	done := make(chan error, 1)
	go func() { done <- server.ActivateAndServe() }()
	t.Cleanup(func() {
		conn.Close() // which ends the server
		<-done
	})
	return nil
}

// resolve answers SERVICE.NAMESPACE.svc.cluster.local with the Service's ClusterIP.
func (c *cluster) resolve(ctx context.Context, query *dns.Msg) *dns.Msg {
	answer := new(dns.Msg).SetReply(query)
	if len(query.Question) != 1 {
		return answer.SetRcode(query, dns.RcodeFormatError)
	}
	q := query.Question[0]
	list, err := c.Kubernetes.Admin().List(ctx, corev1.SchemeGroupVersion.WithKind("Service"))
	if err != nil {
		return answer.SetRcode(query, dns.RcodeServerFailure)
	}
	for _, o := range list {
		if !strings.EqualFold(q.Name, o.GetName()+"."+o.GetNamespace()+".svc.cluster.local.") {
			continue
		}
		spec, _ := o.Object["spec"].(map[string]any)
		text, _ := spec["clusterIP"].(string)
		if addr, err := netip.ParseAddr(text); err == nil && addr.Is4() && q.Qtype == dns.TypeA {
			answer.Answer = append(answer.Answer,
				&dns.A{
					Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1},
					A:   addr.AsSlice(),
				})
		}
		return answer
	}
	return answer.SetRcode(query, dns.RcodeNameError)
}
