package guard

import (
	"fmt"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
)

const (
	// leeway is how far the clocks of the adapter and the API server may differ;
	// the API server itself allows as much.
	leeway = time.Minute
	// lastSecond bounds an expiry so that it can be calculated with: year 36812.
	lastSecond = 1 << 40
)

// precheck reads the claims of a token and refuses a token that cannot be
// accepted. It verifies nothing, so it never admits a caller: it saves the API
// server a review, and answers the caller what is wrong, which the API server does
// not. The expiry is zero when the token has none.
func precheck(token, want string, now time.Time) (c kube.Claims, expiry time.Time, err error) {
	c, ok := kube.ReadClaims(token)
	if !ok {
		return c, expiry, unauthenticated(want, "the bearer token is no JSON Web Token")
	}
	if !slices.Contains(c.Audiences, want) {
		wrong := "the bearer token names no audience"
		if n := len(c.Audiences); n > 0 {
			wrong = fmt.Sprintf("the bearer token is for the audience %.200q", c.Audiences[0])
			if n > 1 {
				wrong += fmt.Sprintf(" and %d more", n-1)
			}
		}
		return c, expiry, unauthenticated(want, wrong)
	}
	if c.Expiry == nil {
		return c, expiry, nil
	}
	expiry = time.Unix(int64(max(0, min(*c.Expiry, lastSecond))), 0).UTC()
	if !now.Before(expiry.Add(leeway)) {
		return c, expiry, unauthenticated(want, fmt.Sprintf("the bearer token expired at %s, and it is %s here",
			expiry.Format(time.RFC3339), now.UTC().Format(time.RFC3339)))
	}
	return c, expiry, nil
}
