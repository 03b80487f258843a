package schedule

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

// The backoff of a request.
func TestBackoff_OfARequest(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		b    Backoff
		n    uint32
		want time.Duration
	}{
		"the first wait is the base":            {Backoff{Base: 5 * time.Second, Factor: 2, Cap: time.Hour}, 1, 5 * time.Second},
		"the second is the base times factor":   {Backoff{Base: 5 * time.Second, Factor: 2, Cap: time.Hour}, 2, 10 * time.Second},
		"the fourth":                            {Backoff{Base: 5 * time.Second, Factor: 2, Cap: time.Hour}, 4, 40 * time.Second},
		"a fraction as factor":                  {Backoff{Base: 2 * time.Second, Factor: 1.5, Cap: time.Hour}, 3, 4500 * time.Millisecond},
		"the cap":                               {Backoff{Base: 5 * time.Second, Factor: 2, Cap: time.Minute}, 5, time.Minute},
		"a cap under the base":                  {Backoff{Base: time.Hour, Factor: 2, Cap: time.Minute}, 1, time.Minute},
		"a factor of one":                       {Backoff{Base: time.Second, Factor: 1, Cap: time.Hour}, 1000, time.Second},
		"no base":                               {Backoff{Base: 0, Factor: 2, Cap: time.Hour}, 1000, 0},
		"a cap of nothing":                      {Backoff{Base: time.Second, Factor: 2, Cap: 0}, 3, 0},
		"far past the range of a duration":      {Backoff{Base: time.Second, Factor: 2, Cap: 1000 * time.Second}, 10_000, 1000 * time.Second},
		"far past the range of a float64":       {Backoff{Base: MaxDuration, Factor: math.MaxFloat64, Cap: MaxDuration}, math.MaxUint32, MaxDuration},
		"an infinite factor":                    {Backoff{Base: 1, Factor: math.Inf(1), Cap: MaxDuration}, 2, MaxDuration},
		"a base that a float64 does not hold":   {Backoff{Base: 1<<53 + 1, Factor: 2, Cap: MaxDuration}, 1, 1<<53 + 1},
		"a century by a factor of one":          {Backoff{Base: MaxDuration - 1, Factor: 1, Cap: MaxDuration}, 9, MaxDuration - 1},
		"a nanosecond and a bit is rounded up":  {Backoff{Base: 1, Factor: 1.1, Cap: time.Hour}, 2, 2},
		"the defaults give client-go's largest": {Backoff{Base: DefaultBase, Factor: DefaultFactor, Cap: DefaultCap}, 11, 1000 * time.Second},
		"and before that":                       {Backoff{Base: DefaultBase, Factor: DefaultFactor, Cap: DefaultCap}, 10, 512 * time.Second},
	} {
		if got := tc.b.wait(tc.n); got != tc.want {
			t.Errorf("%s: wait %v, want %v", name, got, tc.want)
		}
	}
}

// Never less than exact arithmetic says but for a float's last digit, never over the cap, never shorter than before.
func TestBackoff_ExactArithmetic(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		b := Backoff{Base: time.Duration(r.Int64N(int64(time.Hour))), Factor: 1 + r.Float64()*4, Cap: time.Duration(r.Int64N(int64(MaxDuration)))}
		exact := new(big.Float).SetPrec(2000).SetInt64(int64(b.Base))
		before := time.Duration(0)
		for n := uint32(1); n < 40; n++ {
			got := b.wait(n)
			want := new(big.Float).Set(exact)
			if limit := new(big.Float).SetInt64(int64(b.Cap)); want.Cmp(limit) > 0 {
				want = limit
			}
			w, _ := want.Float64()
			if off := float64(got) - w; off < -1e-12*w || off > 1+1e-12*w || got > b.Cap || got < before {
				t.Fatalf("%+v: wait %d is %d after %d, want %.3f", b, n, got, before, w)
			}
			before = got
			exact.Mul(exact, new(big.Float).SetFloat64(b.Factor))
		}
	}
}

// The wait between attempts.
func TestDelivery_WaitBetweenAttempts(t *testing.T) {
	t.Parallel()
	limit := func(d time.Duration) *time.Duration { return &d }
	for name, tc := range map[string]struct {
		d          Delivery
		n          uint32
		retryAfter time.Duration
		want       time.Duration
	}{
		"exponential, first":               {Delivery{BackoffDelay: time.Second}, 1, 0, time.Second},
		"exponential, second":              {Delivery{BackoffDelay: time.Second}, 2, 0, 2 * time.Second},
		"exponential, tenth":               {Delivery{BackoffDelay: time.Second}, 10, 0, 512 * time.Second},
		"exponential, eleventh":            {Delivery{BackoffDelay: time.Second}, 11, 0, 1000 * time.Second},
		"exponential, millionth":           {Delivery{BackoffDelay: time.Second}, 1_000_000, 0, 1000 * time.Second},
		"exponential, last":                {Delivery{BackoffDelay: 1}, math.MaxUint32, 0, 1000 * time.Second},
		"exponential, a long delay":        {Delivery{BackoffDelay: time.Hour}, 1, 0, 1000 * time.Second},
		"exponential, a century":           {Delivery{BackoffDelay: MaxDuration}, math.MaxUint32, 0, 1000 * time.Second},
		"no delay, first":                  {Delivery{}, 1, 0, 5 * time.Millisecond},
		"no delay, fifth":                  {Delivery{}, 5, 0, 80 * time.Millisecond},
		"no delay, last":                   {Delivery{}, math.MaxUint32, 0, 1000 * time.Second},
		"backoffMax":                       {Delivery{BackoffDelay: time.Second, BackoffMax: limit(time.Minute)}, 11, 0, time.Minute},
		"backoffMax over 1000 s":           {Delivery{BackoffDelay: time.Second, BackoffMax: limit(time.Hour)}, 12, 0, 2048 * time.Second},
		"backoffMax, linear":               {Delivery{Linear: true, BackoffDelay: time.Second, BackoffMax: limit(time.Minute)}, 61, 0, time.Minute},
		"backoffMax and Retry-After":       {Delivery{BackoffDelay: time.Second, BackoffMax: limit(time.Minute)}, 11, time.Hour, 1000 * time.Second},
		"backoffMax caps the floor":        {Delivery{BackoffMax: limit(time.Minute)}, 100, 0, time.Minute},
		"backoffMax of nothing":            {Delivery{BackoffDelay: time.Hour, BackoffMax: limit(0)}, 1, 0, 5 * time.Millisecond},
		"backoffMax of nothing, last":      {Delivery{BackoffDelay: time.Hour, BackoffMax: limit(0)}, 100, 0, time.Second},
		"linear, first":                    {Delivery{Linear: true, BackoffDelay: time.Second}, 1, 0, time.Second},
		"linear, second":                   {Delivery{Linear: true, BackoffDelay: time.Second}, 2, 0, 2 * time.Second},
		"linear, third":                    {Delivery{Linear: true, BackoffDelay: time.Second}, 3, 0, 3 * time.Second},
		"linear, thousandth":               {Delivery{Linear: true, BackoffDelay: time.Second}, 1000, 0, 1000 * time.Second},
		"linear, after that":               {Delivery{Linear: true, BackoffDelay: time.Second}, 1001, 0, 1000 * time.Second},
		"linear, last":                     {Delivery{Linear: true, BackoffDelay: MaxDuration}, math.MaxUint32, 0, 1000 * time.Second},
		"linear, a long delay":             {Delivery{Linear: true, BackoffDelay: time.Hour}, 1, 0, 1000 * time.Second},
		"linear, an odd delay":             {Delivery{Linear: true, BackoffDelay: 300 * time.Second}, 3, 0, 900 * time.Second},
		"linear, an odd delay at the cap":  {Delivery{Linear: true, BackoffDelay: 300 * time.Second}, 4, 0, 1000 * time.Second},
		"linear, no delay":                 {Delivery{Linear: true}, math.MaxUint32, 0, 1000 * time.Second},
		"Retry-After raises the wait":      {Delivery{BackoffDelay: time.Second}, 1, time.Minute, time.Minute},
		"Retry-After never shortens it":    {Delivery{BackoffDelay: time.Minute}, 1, time.Second, time.Minute},
		"Retry-After up to 1000 s":         {Delivery{BackoffDelay: time.Second}, 1, time.Hour, 1000 * time.Second},
		"Retry-After up to retryAfterMax":  {Delivery{BackoffDelay: time.Second, RetryAfterMax: limit(5 * time.Minute)}, 1, time.Hour, 5 * time.Minute},
		"retryAfterMax may be over 1000 s": {Delivery{BackoffDelay: time.Second, RetryAfterMax: limit(2 * time.Hour)}, 1, time.Hour, time.Hour},
		"retryAfterMax of nothing":         {Delivery{BackoffDelay: time.Second, RetryAfterMax: limit(0)}, 1, time.Hour, time.Second},
		"retryAfterMax does not shorten":   {Delivery{BackoffDelay: time.Hour, RetryAfterMax: limit(time.Second)}, 1, time.Hour, 1000 * time.Second},
	} {
		if got := tc.d.wait(tc.n, tc.retryAfter); got != tc.want {
			t.Errorf("%s: wait %v, want %v", name, got, tc.want)
		}
	}
}

// Retry counts the attempts after the first.
func TestDelivery_RetryCountsAfterTheFirst(t *testing.T) {
	t.Parallel()
	for _, retry := range []int{0, 1, 20} {
		d := Delivery{Retry: &retry}
		if d.exhausted(uint32(retry)) {
			t.Errorf("retry %d: used up after %d failures", retry, retry)
		}
		if !d.exhausted(uint32(retry) + 1) {
			t.Errorf("retry %d: not used up after %d failures", retry, retry+1)
		}
	}
	if (&Delivery{}).exhausted(math.MaxUint32) {
		t.Error("without retry the retries are used up")
	}
}
