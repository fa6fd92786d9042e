package kube

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A program is a running controller or speaker.
type program struct {
	t       *testing.T
	name    string
	log     string // path of its log file
	metrics string // host:port, empty when it has none
	health  string // the same
	cmd     *exec.Cmd
	done    chan struct{} // closed when it has ended
}

// run starts the controller or the speaker with the rights of its account. It ends with the
// test at the latest.
func (f *fanfare) run(command string, args ...string) *program {
	f.Helper()
	f.programs++
	p := &program{t: f.T, name: fmt.Sprintf("%s-%d", command, f.programs)}
	p.log = filepath.Join(f.dir, p.name+".log")
	for _, arg := range args {
		if addr, ok := strings.CutPrefix(arg, "--metrics-address="); ok {
			p.metrics = addr
		}
		if addr, ok := strings.CutPrefix(arg, "--health-address="); ok {
			p.health = addr
		}
	}
	log, err := os.Create(p.log)
	must(f.T, err)
	defer log.Close()
	p.cmd = exec.Command(f.binary, append([]string{command, "--kubeconfig", f.kubeconfig(command)}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // if this process dies without a clean-up
	p.done, err = begin(p.cmd, func(start func() error) error { return start() })
	must(f.T, err)
	f.Cleanup(func() {
		p.kill()
		if f.Failed() {
			f.Logf("%s:\n%s", p.name, p.tail())
		}
	})
	return p
}

// kill ends the program as a crash does.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // It may be gone already.
	<-p.done
}

// stop ends the program as Kubernetes does, and waits for its end.
func (p *program) stop() {
	p.signal(syscall.SIGTERM)
	<-p.done
}

// freeze stops the process in the middle of its work; resume continues it.
func (p *program) freeze() { p.signal(syscall.SIGSTOP) }
func (p *program) resume() { p.signal(syscall.SIGCONT) }

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Errorf("%s: %s: %v", p.name, s, err)
	}
}

// alive returns an error if the program has ended.
func (p *program) alive() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s: %s", p.name, p.cmd.ProcessState)
	default:
		return nil
	}
}

func (p *program) logged(text string) bool {
	b, err := os.ReadFile(p.log)
	return err == nil && strings.Contains(string(b), text)
}

// tail returns the end of the log, which may be megabytes long.
func (p *program) tail() []byte {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	const enough = 16 << 10
	return b[max(0, len(b)-enough):]
}

// metric adds up the series of a metric that have the labels, such as `result="ok"`.
func (p *program) metric(name string, labels ...string) (float64, error) {
	resp, err := http.Get("http://" + p.metrics + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return sum(resp.Body, name, func(series string) bool {
		return !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(series, l) })
	})
}

// apiServerMetric adds up the matching series of one of the API server's metrics.
func (f *fanfare) apiServerMetric(name string, match *regexp.Regexp) (float64, error) {
	text, err := f.Admin().discovery.RESTClient().Get().AbsPath("/metrics").DoRaw(f.Context())
	if err != nil {
		return 0, err
	}
	return sum(bytes.NewReader(text), name, match.MatchString)
}

// sum adds up the wanted series of a metric in Prometheus' text format. A missing metric is
// zero: counters with labels appear with the first count.
func sum(r io.Reader, name string, want func(series string) bool) (total float64, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		end := strings.LastIndexByte(line, ' ') // Label values may contain spaces; numbers do not.
		if end < 0 || !strings.HasPrefix(line, name+"{") && line[:end] != name || !want(line[:end]) {
			continue
		}
		n, err := strconv.ParseFloat(line[end+1:], 64)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, lines.Err()
}

// memory returns the resident memory now and at its peak, in MiB.
func (p *program) memory() (now, peak int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if key, kb, ok := strings.Cut(line, ":"); ok && (key == "VmRSS" || key == "VmHWM") {
			n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(kb, "kB")))
			if err != nil {
				return 0, 0, err
			}
			if key == "VmRSS" {
				now = n >> 10
			} else {
				peak = n >> 10
			}
		}
	}
	return now, peak, nil
}
