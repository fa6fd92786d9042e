package obstacle

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/iptables"
)

// judgeClosed finds programs of iptables whose FORWARD drops what no rule accepts and could not be
// opened, if no rule accepts Fanfare's flows either.
func (s *collector) judgeClosed(closed []string) (all []Obstacle) {
	for _, i := range iptables.Programs {
		if !slices.Contains(closed, i.Name) {
			continue
		}
		save, err := i.Save(context.Background()) // Save has a timeout of its own
		s.miss("rules of "+i.Name, err)
		if err != nil || mayForward(save, s.facts.marked) {
			continue
		}
		about := "chain FORWARD of " + i.Name
		all = append(all, Obstacle{Code: Firewall, About: about, Blocks: forwarded(i.Family()), Message: fmt.Sprintf(
			"%s drops traffic to the addresses, on its way to pods, and cannot be changed: let it accept \"-m "+
				"conntrack --ctstate DNAT\" before", about)})
	}
	return all
}

// kubeProxyMark is how kube-proxy accepts its own flows. Its chains of nat set the mark, and the
// kernel does not ask them about a flow that Fanfare's rules have translated before. But Fanfare
// may set the same mark (marked).
const (
	kubeProxyMark    = "-m mark --mark 0x4000/0x4000 "
	kubeProxyMarkBit = 0x4000
)

var (
	targetOf = regexp.MustCompile(`^(?:.* )?-[jg] (\S+)`)
	// goesOn matches targets after which a packet goes on to the next rule.
	goesOn = regexp.MustCompile(`^(LOG|NFLOG|CT|MARK|CONNMARK|SET|TCPMSS|CHECKSUM|CLASSIFY|TRACE)$`)
	// ofOthers matches tests that a new flow from another host to a pod fails: kube-proxy, Docker
	// and ufw accept by them.
	ofOthers = regexp.MustCompile(`(?:^|[^!] )(?:--ctstate (?:RELATED,ESTABLISHED|ESTABLISHED)|-[io] (?:lo|docker0|br-[0-9a-f]{12})|-p (?:icmp|ipv6-icmp)) `)
)

// mayForward reports whether a rule that FORWARD leads to may accept Fanfare's flows, by the text
// of iptables-save for table filter: one that ofOthers does not exclude.
func mayForward(save string, marked bool) bool {
	chains := make(map[string][]string)
	for line := range strings.Lines(save) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		switch {
		case strings.HasPrefix(line, ":"):
			chains[words[0][1:]] = nil
		case words[0] == "-A" && len(words) == 3 && !ofOthers.MatchString(words[2]) &&
			(marked || !strings.Contains(words[2], kubeProxyMark)):
			chains[words[1]] = append(chains[words[1]], words[2])
		}
	}
	for next, reached := []string{"FORWARD"}, map[string]bool{}; len(next) > 0; next = next[1:] {
		for _, rule := range chains[next[0]] {
			target := targetOf.FindStringSubmatch(rule)
			if target == nil || goesOn.MatchString(target[1]) || reached[target[1]] {
				continue
			}
			switch _, chain := chains[target[1]]; {
			case target[1] == "DROP" || target[1] == "REJECT" || target[1] == "RETURN":
				continue
			case !chain:
				return true
			}
			reached[target[1]] = true
			next = append(next, target[1])
		}
	}
	return false
}
