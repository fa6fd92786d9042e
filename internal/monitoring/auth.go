package monitoring

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/apigroup"
)

const (
	// allowedFor and refusedFor are how long a decision is remembered: a revoked token or
	// right is effective for a minute, and a granted one works after ten seconds.
	allowedFor = time.Minute
	refusedFor = 10 * time.Second
	// goodFor is how long a token that was allowed is reviewed before unknown ones.
	goodFor = time.Hour
	// maxDecisions bounds the memory for refused tokens, and for allowed ones.
	maxDecisions = 256
	// reviewTimeout is less than the 10 s that Prometheus waits.
	reviewTimeout = 5 * time.Second
)

// The reviews of each second, and how many may be at once. The first ones are for tokens that were
// allowed, and for other tokens from their clients' addresses: tokens are replaced each hour. A flood
// of wrong tokens costs the API server no more than the second ones.
const (
	goodRate, goodBurst       = 10, 20
	unknownRate, unknownBurst = 2, 10
	// clientRate and clientBurst are the part of one client's address, so that others are reviewed.
	clientRate, clientBurst = 0.5, 5
	// maxClients bounds the memory for rates of addresses.
	maxClients = 256
)

// An authorizer passes those requests on whose clients may make them, as the API server
// decides.
type authorizer struct {
	next           http.Handler
	authentication rest.Interface
	authorization  rest.Interface
	log            *slog.Logger
	good, unknown  *rate.Limiter // of reviews

	mu      sync.Mutex
	allowed map[requestHash]time.Time // when a decision was made; kept for goodFor
	refused map[requestHash]refusal
	clients map[netip.Prefix]*client
	swept   time.Time // when idle clients were last deleted
}

// A client is an address.
type client struct {
	unknown *rate.Limiter // of reviews of its unknown tokens
	allowed time.Time     // when its token was last allowed
}

// A requestHash is of a token and a path. Maps have it, and so keep no token for longer than a request.
type requestHash [sha256.Size]byte

type refusal struct {
	status int
	at     time.Time
}

// newAuthorizer sends no request. The process's account needs the right to create both reviews: the
// ClusterRole system:auth-delegator has the same.
func newAuthorizer(c *rest.Config, next http.Handler, log *slog.Logger) (*authorizer, error) {
	a := &authorizer{
		next: next, log: log, good: rate.NewLimiter(goodRate, goodBurst),
		unknown: rate.NewLimiter(unknownRate, unknownBurst),
		allowed: map[requestHash]time.Time{}, refused: map[requestHash]refusal{}, clients: map[netip.Prefix]*client{},
	}
	c = rest.CopyConfig(c)
	c.QPS, c.Timeout = -1, reviewTimeout // The authorizer's rates hold.
	scheme := apigroup.Scheme(authenticationv1.AddToScheme, authorizationv1.AddToScheme)
	var err, err2 error
	a.authentication, err = apigroup.Client(c, nil, scheme, authenticationv1.SchemeGroupVersion)
	a.authorization, err2 = apigroup.Client(c, nil, scheme, authorizationv1.SchemeGroupVersion)
	if err = errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("reviews of metrics clients: %w", err)
	}
	return a, nil
}

// ServeHTTP answers 401 without a valid token, 403 without the right to read the path, 429 if there
// are too many unknown tokens, and 503 while the API server does not answer.
func (a *authorizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "want a bearer token", http.StatusUnauthorized)
		return
	}
	switch status := a.decide(r.Context(), token, r.URL.Path, clientOf(r)); status {
	case http.StatusOK:
		a.next.ServeHTTP(w, r)
	case http.StatusForbidden:
		http.Error(w, "the token's account may not get the non-resource URL "+r.URL.Path+
			"; bind it to the ClusterRole fanfare-metrics-reader", status)
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "the API server does not accept the token", status)
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "2")
		http.Error(w, "too many unknown tokens were sent, of this address or of all", status)
	default:
		http.Error(w, "the API server does not answer whether the token may be used", status)
	}
}

// clientOf is the address of a client: of IPv6 the /64, of which a host has any address.
func clientOf(r *http.Request) netip.Prefix {
	at, _ := netip.ParseAddrPort(r.RemoteAddr)
	addr := at.Addr().Unmap()
	if addr.Is6() {
		return netip.PrefixFrom(addr, 64).Masked()
	}
	return netip.PrefixFrom(addr, 32)
}

// decide returns the status for a token and a path.
func (a *authorizer) decide(ctx context.Context, token, path string, from netip.Prefix) int {
	key := requestHash(sha256.Sum256([]byte(token + "\n" + path))) // A token has no line break.
	now := time.Now()
	status, good := a.remembered(key, now)
	if status != 0 {
		return status
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	switch {
	case good:
		if a.good.Wait(ctx) != nil {
			return http.StatusServiceUnavailable
		}
	case !a.allowUnknown(from, now):
		return http.StatusTooManyRequests
	}
	status, err := a.review(ctx, token, path)
	if err != nil {
		a.log.Debug("client of metrics not reviewed", "err", err)
		return http.StatusServiceUnavailable
	}
	a.remember(key, from, status, now)
	return status
}

// remembered returns the decision about a request, 0 if it must be reviewed. good: it was allowed
// lately.
func (a *authorizer) remembered(key requestHash, now time.Time) (status int, good bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, known := a.allowed[key]; known && now.Sub(at) < goodFor {
		if now.Sub(at) < allowedFor {
			return http.StatusOK, true
		}
		return 0, true
	}
	if r, known := a.refused[key]; known && now.Sub(r.at) < refusedFor {
		return r.status, false
	}
	return 0, false
}

// allowUnknown reports whether an unknown token of a client may be reviewed now. It does not wait:
// a flood would fill the queue.
func (a *authorizer) allowUnknown(from netip.Prefix, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.clients[from]
	if c == nil {
		if len(a.clients) >= maxClients && now.Sub(a.swept) >= time.Second {
			// Clients that have sent nothing for a while have their whole burst, as new ones.
			a.swept = now
			maps.DeleteFunc(a.clients, func(_ netip.Prefix, c *client) bool {
				return !c.isGood(now) && c.unknown.TokensAt(now) >= clientBurst
			})
		}
		if len(a.clients) >= maxClients {
			return false
		}
		c = &client{unknown: rate.NewLimiter(clientRate, clientBurst)}
		a.clients[from] = c
	}
	all := a.unknown
	if c.isGood(now) {
		all = a.good
	}
	return c.unknown.AllowN(now, 1) && all.AllowN(now, 1)
}

func (c *client) isGood(now time.Time) bool { return now.Sub(c.allowed) < goodFor }

// remember keeps a decision. Refused tokens never take the place of allowed ones.
func (a *authorizer) remember(key requestHash, from netip.Prefix, status int, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if status == http.StatusOK {
		if c := a.clients[from]; c != nil {
			c.allowed = now
		}
		makeRoom(a.allowed, func(at time.Time) bool { return now.Sub(at) >= goodFor })
		a.allowed[key] = now
		delete(a.refused, key)
		return
	}
	delete(a.allowed, key)
	makeRoom(a.refused, func(r refusal) bool { return now.Sub(r.at) >= refusedFor })
	a.refused[key] = refusal{status, now}
}

// makeRoom makes room for a decision in a full map: it deletes expired ones, or any.
func makeRoom[D any](m map[requestHash]D, expired func(D) bool) {
	if len(m) < maxDecisions {
		return
	}
	maps.DeleteFunc(m, func(_ requestHash, d D) bool { return expired(d) })
	for key := range m {
		if len(m) < maxDecisions {
			return
		}
		delete(m, key)
	}
}

// review asks the API server whose token it is, and what that account may do.
func (a *authorizer) review(ctx context.Context, token, path string) (int, error) {
	who := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := a.authentication.Post().Resource("tokenreviews").Body(who).Do(ctx).Into(who); err != nil {
		return 0, err
	}
	if !who.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	// The review is about the whole identity: an authorizer may decide by groups, as RBAC does, or by
	// extra values, as those of a certificate or of an OIDC provider.
	user := who.Status.User
	may := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
	}}
	for k, v := range user.Extra {
		may.Spec.Extra[k] = authorizationv1.ExtraValue(v)
	}
	if err := a.authorization.Post().Resource("subjectaccessreviews").Body(may).Do(ctx).Into(may); err != nil {
		return 0, err
	}
	if !may.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}
