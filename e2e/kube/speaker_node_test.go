package kube

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// probe returns the status and the text of an answer.
func (p *program) probe(path string) (string, error) {
	resp, err := http.Get("http://" + p.health + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.StatusCode, " ", strings.TrimSpace(string(body))), err
}

// awaitProbe waits until the answer starts with want.
func (p *program) awaitProbe(path, want string) {
	p.t.Helper()
	await(p.t, 60*time.Second, p.name+" "+path, func() error {
		got, err := p.probe(path)
		if err == nil && !strings.HasPrefix(got, want) {
			err = fmt.Errorf("%q, want %q", got, want)
		}
		return err
	})
}

// awaitOutput waits until a fanfare command prints want.
func (f *fanfare) awaitOutput(want string, args ...string) {
	f.Helper()
	await(f.T, 60*time.Second, strings.Join(args, " "), func() error {
		out, err := exec.CommandContext(f.Context(), f.binary, args...).CombinedOutput()
		if err == nil && !strings.Contains(string(out), want) {
			err = fmt.Errorf("no %q", want)
		}
		if err != nil {
			return fmt.Errorf("%w in\n%s", err, out)
		}
		return nil
	})
}

// awaitOwnerReference waits until the SpeakerStatus belongs to the Node with this UID.
func (f *fanfare) awaitOwnerReference(uid string) {
	f.Helper()
	await(f.T, 60*time.Second, "a SpeakerStatus of the Node "+uid, func() error {
		got, err := f.kubectl("get", "speakerstatus", "n1", "-o", "jsonpath={.metadata.ownerReferences[*].uid}")
		if err == nil && got != uid {
			err = errors.New(got)
		}
		return err
	})
}

// The speaker and a controller start while the API server is down, the Node is deleted and
// created again, and finally its autoscaler removes it. All that works with the rights of
// rbac.yaml.
func TestNodeRecreatedAndRemoved(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		nstest.Node(t).Addr("lo", "198.51.100.1/32", "198.51.100.9/32")
		f.bgpd()
		f.APIServer.Kill()
		speaker := f.speaker("--health-address=127.0.0.1:7474", "--linger-bgp=1s")
		controller := f.run("controller", "--health-address=127.0.0.1:7475")
		speaker.awaitProbe("/healthz", "200 ok")
		speaker.awaitProbe("/readyz", "503 waiting since ")
		controller.awaitProbe("/healthz", "200 ok")
		controller.awaitProbe("/readyz", "503 the API server has not been read yet")
		f.awaitOutput("for the API server, without a recent snapshot", "status", "--run-dir", f.runDir())

		must(t, f.StartAPIServer(t.Context()))
		must(t, f.Admin().Apply(t.Context(), routedNode+"---"+oneService("web", "10.244.1.5")))
		speaker.awaitProbe("/readyz", "200 ok")
		controller.awaitProbe("/readyz", "200 ok")
		var vip string
		await(t, 60*time.Second, "an address", func() (err error) { vip, err = f.assigned("web"); return err })
		f.awaitOutput("announce "+vip+"/32", "plan", "--kubeconfig", f.kubeconfig("speaker"), "--node-name", "n1",
			"--run-dir", t.TempDir())
		f.awaitEvent("service/web", "Announced", "node n1 announces "+vip)

		uid, err := f.kubectl("get", "node", "n1", "-o", "jsonpath={.metadata.uid}")
		must(t, err)
		f.awaitOwnerReference(uid)
		must(t, f.Admin().Delete(t.Context(), "{apiVersion: v1, kind: Node, metadata: {name: n1}}"))
		f.awaitEvent("service/web", "Withdrawn", `there is no Node object named "n1"`)
		await(t, 120*time.Second, "the garbage collector", func() error {
			out, err := f.kubectl("get", "speakerstatuses", "-o", "name")
			if err == nil && out != "" {
				err = errors.New(out)
			}
			return err
		})
		must(t, f.Admin().Apply(t.Context(), routedNode))
		again, err := f.kubectl("get", "node", "n1", "-o", "jsonpath={.metadata.uid}")
		must(t, err)
		if again == uid {
			t.Fatal("it is the same Node")
		}
		f.awaitOwnerReference(again)
		f.awaitEventCount("service/web", "Announced", 2)

		_, err = f.kubectl("taint", "node", "n1", "ToBeDeletedByClusterAutoscaler=1234:NoSchedule")
		must(t, err)
		f.awaitEvent("service/web", "Withdrawn", "taint ToBeDeletedByClusterAutoscaler says that node n1 is going away")
		speaker.stop()
		if code := speaker.cmd.ProcessState.ExitCode(); code != 0 || !speaker.logged("stopping for good: withdrawing") {
			t.Errorf("exit status %d, want 0 after withdrawing", code)
		}
	})
}
