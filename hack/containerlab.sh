#!/usr/bin/env bash
# Deploy the laboratory's topology with Docker and containerlab, and check the main story: what
# the router routes to which nodes, and what pods see of a client. KEEP=1 leaves it up.
set -euo pipefail
cd "$(dirname "$0")/../e2e/containerlab"

topology=fanfare.clab.yml
# The speakers read this folder. A file that begins with a dot is not read, so that they never
# see a part of one.
folder=cluster
patience=60 # seconds; sessions are up after some 26

for program in docker containerlab; do
    command -v "$program" >/dev/null || { echo "$program is missing; \`make lab\` needs neither docker nor containerlab" >&2; exit 1; }
done

in_node() { docker exec "clab-fanfare-$1" "${@:2}"; }

# await WHAT COMMAND…: repeats a command until it succeeds.
await() {
    local what=$1 until=$((SECONDS + patience))
    shift
    until "$@"; do
        if ((SECONDS >= until)); then
            echo "no $what after $patience s" >&2
            return 1
        fi
        sleep 0.5
    done
    echo "ok: $what"
}

# publish SCRIPT: writes the example, changed by sed, in one step.
publish() {
    sed "$1" examples/web.yaml >"$folder/.web.yaml"
    mv "$folder/.web.yaml" "$folder/web.yaml"
}

address=
has_address() {
    address=$(in_node n1 fanfare status | grep -F shop/web | grep -oE '192\.0\.2\.[0-9]+' | head -n 1) && [[ -n $address ]]
}

# next_hops: the nodes that the router's kernel sends the address to, in one line.
next_hops() { in_node tor1 ip -4 route show "$address" | grep -oE 'via [0-9.]+' | sort | cut -d' ' -f2 | xargs; }
routed_to() { [[ $(next_hops) == "$*" ]]; }

answered() { in_node client curl --silent --show-error --max-time 2 "http://$address" >/dev/null; }

# sees_client: every one of 20 answers names the client's own address as what the pod saw.
sees_client() {
    local i
    for ((i = 0; i < 20; i++)); do
        in_node client curl --silent --show-error --max-time 2 "http://$address" | grep -qF 203.0.113.10 || return 1
    done
}

end() {
    rm -f "$folder/web.yaml" "$folder/.web.yaml"
    [[ -n ${KEEP:-} ]] || containerlab destroy --topo "$topology" --cleanup
}
trap end EXIT

docker build --tag fanfare-lab .
containerlab deploy --topo "$topology" --reconfigure
publish ''
await "an address" has_address
await "routes to $address by the nodes with its pods (Local)" routed_to 198.51.100.11 198.51.100.12
await "an answer" answered
sees_client
echo "ok: pods see the client's own address"
publish 's/externalTrafficPolicy: Local/externalTrafficPolicy: Cluster/'
await "routes to $address by all nodes (Cluster)" routed_to 198.51.100.11 198.51.100.12 198.51.100.13
await "an answer" answered
