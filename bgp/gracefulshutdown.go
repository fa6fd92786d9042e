package bgp

import (
	"context"

	"github.com/osrg/gobgp/v4/api"
)

// shutdownPolicy is the export policy of a graceful shutdown. It follows the routes' own
// attributes, because its preference must win, and precedes the statements that select routers. RFC
// 8326 §4.2 recommends a preference of 0, but GoBGP treats 0 as unset.
const (
	shutdownPolicy     = "graceful shutdown"
	shutdownCommunity  = "65535:0"
	shutdownPreference = 1
)

// setShutdown changes the export policy. GoBGP sends no route again when only a policy changes: see
// marking.
func (e *engine) setShutdown(ctx context.Context, on bool) error {
	return e.assign(ctx, api.PolicyDirection_POLICY_DIRECTION_EXPORT, api.RouteAction_ROUTE_ACTION_ACCEPT,
		exportPolicies(on))
}
