package monitoring

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

const (
	// allowedFor and refusedFor are how long a decision is remembered: a revoked token or
	// right is effective for a minute, and a granted one works after ten seconds.
	allowedFor = time.Minute
	refusedFor = 10 * time.Second
	// maxDecisions bounds the memory that clients with random tokens can use.
	maxDecisions = 256
	// reviewTimeout is less than the 10 s that Prometheus waits.
	reviewTimeout = 5 * time.Second
)

// An authorizer passes those requests on whose clients may make them, as the API server
// decides.
type authorizer struct {
	next           http.Handler
	authentication rest.Interface
	authorization  rest.Interface
	log            *slog.Logger

	mu        sync.Mutex
	decisions map[[sha256.Size]byte]decision
}

// A decision is about one token and path.
type decision struct {
	status int // http.StatusOK: allowed
	until  time.Time
}

// newAuthorizer sends no request. The process's account needs the right to create both reviews: the
// ClusterRole system:auth-delegator has the same.
func newAuthorizer(c *rest.Config, next http.Handler, log *slog.Logger) (*authorizer, error) {
	a := &authorizer{next: next, log: log, decisions: map[[sha256.Size]byte]decision{}}
	var err error
	if a.authentication, err = reviewClient(c, authenticationv1.SchemeGroupVersion, authenticationv1.AddToScheme); err != nil {
		return nil, err
	}
	a.authorization, err = reviewClient(c, authorizationv1.SchemeGroupVersion, authorizationv1.AddToScheme)
	return a, err
}

// reviewClient returns a client for one API group, without the clientset of all groups, which would
// be linked into the binary.
func reviewClient(c *rest.Config, gv schema.GroupVersion, add func(*runtime.Scheme) error) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := add(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, gv)
	conf := rest.CopyConfig(c)
	conf.APIPath, conf.GroupVersion = "/apis", &gv
	conf.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	// A flood of wrong tokens costs the API server no more than this.
	conf.QPS, conf.Burst, conf.Timeout = 5, 10, reviewTimeout
	client, err := rest.RESTClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("reviews of metrics clients: %w", err)
	}
	return client, nil
}

// ServeHTTP answers 401 without a valid token, 403 without the right to read the path, and 503
// while the API server does not answer.
func (a *authorizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "want a bearer token", http.StatusUnauthorized)
		return
	}
	switch status := a.decide(r.Context(), token, r.URL.Path); status {
	case http.StatusOK:
		a.next.ServeHTTP(w, r)
	case http.StatusForbidden:
		http.Error(w, "the token's account may not get the non-resource URL "+r.URL.Path+"; bind it to the ClusterRole fanfare-metrics-reader", status)
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "the API server does not accept the token", status)
	default:
		http.Error(w, "the API server does not answer whether the token may be used", status)
	}
}

// decide returns the status for a token and a path.
func (a *authorizer) decide(ctx context.Context, token, path string) int {
	// The map keeps hashes, and so no token for longer than a request.
	key := sha256.Sum256([]byte(token + "\n" + path)) // A token has no line break.
	now := time.Now()
	a.mu.Lock()
	known, ok := a.decisions[key]
	a.mu.Unlock()
	if ok && now.Before(known.until) {
		return known.status
	}
	// Several requests may be reviewed at once: the client's rate bounds them.
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	status, err := a.review(ctx, token, path)
	if err != nil {
		a.log.Debug("client of metrics not reviewed", "err", err)
		return http.StatusServiceUnavailable
	}
	a.remember(key, status, now)
	return status
}

// remember keeps a decision. If there are too many, all go: the next requests are reviewed.
func (a *authorizer) remember(key [sha256.Size]byte, status int, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.decisions) >= maxDecisions {
		clear(a.decisions)
	}
	lifetime := refusedFor
	if status == http.StatusOK {
		lifetime = allowedFor
	}
	a.decisions[key] = decision{status, now.Add(lifetime)}
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
