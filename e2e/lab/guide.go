package lab

import (
	"context"
	"fmt"
	"strings"
	"text/template"
)

// guide explains how to look around in a lab that is left up.
var guide = template.Must(template.New("guide").Parse(`The lab is left up. It has two Services to try, in namespace shop:
  web (Local, pods p11 and p21) at {{.Web}}, any (Cluster, pod p31) at {{.Any}}

Send requests as the client:
  ip netns exec {{.NS}}client curl http://{{.Web}}
  ip netns exec {{.NS}}client curl http://{{.Any}}
Ask the router:
  vtysh --vty_socket {{.Dir}}/frr --config_dir {{.Dir}}/frr -c 'show bgp summary' -c 'show ip route bgp'
  ip -n {{.NS}}tor1 route show {{.Web}}
Ask a node's kernel:
  ip netns exec {{.NS}}n1 nft list map inet fanfare xeps4
  ip netns exec {{.NS}}n1 conntrack -L -d {{.Web}}
Ask a speaker, and read its log:
  {{.Binary}} status --run-dir {{.Dir}}/run/n1
  {{.Binary}} plan --files {{.Dir}}/cluster --node-name n1 --run-dir {{.Dir}}/run/n1
  less {{.Dir}}/log/speaker-n1.log
Change the cluster: write a file beside the folder and rename it into it, for instance to move web to n3
  sed 's/10.244.1.11/10.244.3.11/; s/nodeName: n1/nodeName: n3/' {{.Dir}}/cluster/web.yaml > {{.Dir}}/web && mv {{.Dir}}/web {{.Dir}}/cluster/web.yaml

make lab-down removes all of it.
`))

// Guide creates Services to try and returns the instructions.
func (l *Lab) Guide(ctx context.Context) (string, error) {
	s := &StepRun{Lab: l}
	web, err := s.Serve(ctx, Service{Name: "web", Policy: localTraffic, Endpoints: At("p11", "p21")}, "n1", "n2")
	if err != nil {
		return "", err
	}
	anywhere, err := s.Serve(ctx, Service{Name: "any", Endpoints: At("p31")}, NodeNames...)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = guide.Execute(&b, map[string]string{
		"Web": web.String(), "Any": anywhere.String(), "NS": l.namespaceName(""), "Dir": l.path(), "Binary": l.Binary,
	})
	if err != nil {
		return "", fmt.Errorf("guide: %w", err)
	}
	return b.String(), nil
}
