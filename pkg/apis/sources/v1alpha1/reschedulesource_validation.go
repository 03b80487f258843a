package v1alpha1

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/calendar"
)

// Bounds of texts, in code points, and of numbers. The schema of the CRD has the same.
const (
	maxDuration   = 64
	maxURI        = 2048
	maxAudience   = 2048
	maxCACerts    = 256 << 10
	maxOverrides  = 64 // extensions
	maxOverride   = 2048
	maxExpression = 4096
	maxAPIVersion = validation.DNS1123SubdomainMaxLength + 1 + validation.DNS1035LabelMaxLength
	maxPending    = 1<<53 - 1 // the largest integer that every JSON parser reads exactly
)

// validateLength bounds a text.
func validateLength(field, s string, most int) *apis.FieldError {
	if n := utf8.RuneCountInString(s); n > most {
		return apis.ErrGeneric(fmt.Sprintf("has %d characters, more than %d", n, most), field)
	}
	return nil
}

// Validate reports everything that is wrong with the spec, and too many labels.
func (s *RescheduleSource) Validate(ctx context.Context) *apis.FieldError {
	var errs *apis.FieldError
	if len(s.Labels) > MaxLabels {
		errs = apis.ErrGeneric(fmt.Sprintf("has more than %d labels: remove some", MaxLabels), "metadata.labels")
	}
	return errs.Also(s.Spec.Validate(apis.WithinParent(ctx, s.ObjectMeta)).ViaField("spec"))
}

// Validate reports everything that is wrong with the spec. A sink may be in
// another namespace, as with Knative's own sources.
func (s *RescheduleSourceSpec) Validate(ctx context.Context) *apis.FieldError {
	ctx = apis.AllowDifferentNamespace(ctx)
	var errs *apis.FieldError
	if !s.Sinkless() {
		errs = validateDestination(ctx, &s.Sink).ViaField("sink")
	}
	if s.CloudEventOverrides != nil {
		errs = errs.Also(validateOverrides(s.CloudEventOverrides.Extensions).ViaField("extensions").ViaField("ceOverrides"))
	}
	errs = errs.Also(validateDelivery(ctx, s.Delivery).ViaField("delivery"))
	errs = errs.Also(validateDuration("delay", s.Delay))
	errs = errs.Also(validatePolicy("conflictPolicy", s.ConflictPolicy))
	errs = errs.Also(validateDuration("maxInterval", s.MaxInterval))
	errs = errs.Also(s.validateSchedule())
	errs = errs.Also(validateDuration("slack", s.Slack))
	errs = errs.Also(s.Ingest.validate().ViaField("ingest"))
	errs = errs.Also(s.DeadLetters.validate().ViaField("deadLetters"))
	errs = errs.Also(validateDuration("warmUp", s.WarmUp))
	if s.Jitter != nil && !(*s.Jitter >= 0 && *s.Jitter <= 1) { // also NaN
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%v is not from 0 to 1", *s.Jitter), "jitter"))
	}
	errs = errs.Also(validateOneOf("access", s.Access, AccessNamespace, AccessRBAC))
	errs = errs.Also(s.Watch.validate().ViaField("watch"))
	errs = errs.Also(s.validateScale())
	return errs.Also(s.Limits.validate().ViaField("limits"))
}

// validateSchedule takes a delay of zero as none: it is the default.
func (s *RescheduleSourceSpec) validateSchedule() *apis.FieldError {
	if s.Schedule == nil {
		return nil
	}
	var errs *apis.FieldError
	if s.MaxInterval != nil || s.Delay != nil && strings.ContainsAny(*s.Delay, "123456789") {
		errs = apis.ErrGeneric("stands in place of delay and maxInterval: leave them out", "schedule")
	}
	_, err := calendar.Parse(s.Schedule.Cron, s.Schedule.TimeZone)
	if wrong, ok := errors.AsType[*calendar.Error](err); ok {
		field := wrong.Field
		if s.Schedule.Cron == "" {
			field = calendar.FieldCron
		}
		errs = errs.Also(apis.ErrGeneric(wrong.Detail, field).ViaField("schedule"))
	}
	return errs
}

func (i *RescheduleSourceIngest) validate() *apis.FieldError {
	if i == nil {
		return nil
	}
	errs := validateLength("key", i.Key, maxExpression)
	errs = errs.Also(validateLength("when", i.When, maxExpression))
	errs = errs.Also(validatePolicy("conflictPolicy", i.ConflictPolicy))
	if i.Policies != nil {
		seen := map[ConflictPolicy]bool{}
		for n, p := range *i.Policies {
			errs = errs.Also(validatePolicy(apis.CurrentField, &p).ViaFieldIndex("policies", n))
			if seen[p] {
				errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%.64q is listed twice", p), apis.CurrentField).ViaFieldIndex("policies", n))
			}
			seen[p] = true
		}
	}
	errs = errs.Also(validateDuration("maxDelay", i.MaxDelay))
	return errs.Also(validateOneOf("authentication", i.Authentication, AuthenticationCluster, AuthenticationRequired))
}

// maxDeadLettersKeep bounds deadLetters.keep.
const maxDeadLettersKeep = 1000

func (d *RescheduleSourceDeadLetters) validate() *apis.FieldError {
	if d == nil {
		return nil
	}
	errs := validateAtLeast("keep", d.Keep, 0)
	if d.Keep != nil && *d.Keep > maxDeadLettersKeep {
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%d is more than %d", *d.Keep, maxDeadLettersKeep), "keep"))
	}
	return errs.Also(validateDuration("maxAge", d.MaxAge))
}

func (l *RescheduleSourceLimits) validate() *apis.FieldError {
	if l == nil {
		return nil
	}
	// 0 would be a source that never delivers or never accepts; who wants the
	// former has suspend.
	errs := validateAtLeast("maxInFlight", l.MaxInFlight, 1)
	errs = errs.Also(validateAtLeast("maxPerSecond", l.MaxPerSecond, 0))
	errs = errs.Also(validateAtLeast("maxPending", l.MaxPending, 1))
	if l.MaxPending != nil && *l.MaxPending > maxPending {
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%d is more than %d", *l.MaxPending, int64(maxPending)), "maxPending"))
	}
	if l.MaxBytes != nil && l.MaxBytes.Sign() <= 0 {
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%s is not more than 0", l.MaxBytes), "maxBytes"))
	}
	return errs
}

func validateAtLeast[T int32 | int64](field string, value *T, least T) *apis.FieldError {
	if value == nil || *value >= least {
		return nil
	}
	return apis.ErrGeneric(fmt.Sprintf("%d is less than %d", *value, least), field)
}

func validatePolicy(field string, p *ConflictPolicy) *apis.FieldError {
	return validateOneOf(field, p, ConflictPolicyReplace, ConflictPolicyEarliest, ConflictPolicyLatest, ConflictPolicyKeep, ConflictPolicyFail)
}

func validateOneOf[T ~string](field string, value *T, allowed ...T) *apis.FieldError {
	if value == nil || slices.Contains(allowed, *value) {
		return nil
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		names[i] = string(a)
	}
	return apis.ErrGeneric(fmt.Sprintf("%.64q is not one of %s", *value, strings.Join(names, ", ")), field)
}

// validateDelivery takes the place of DeliverySpec.Validate, which requires a
// feature flag for timeout and retryAfterMax, takes negative durations and
// knows years and months.
func validateDelivery(ctx context.Context, d *RescheduleSourceDelivery) *apis.FieldError {
	if d == nil {
		return nil
	}
	var errs *apis.FieldError
	if d.DeadLetterSink != nil {
		errs = errs.Also(validateDestination(ctx, d.DeadLetterSink).ViaField("deadLetterSink"))
	}
	errs = errs.Also(validateAtLeast("retry", d.Retry, 0))
	if p := d.BackoffPolicy; p != nil && *p != eventingduckv1.BackoffPolicyLinear && *p != eventingduckv1.BackoffPolicyExponential {
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%.64q is not one of linear, exponential", *p), "backoffPolicy"))
	}
	if f := d.Format; f != nil && *f != eventingduckv1.DeliveryFormatBinary && *f != eventingduckv1.DeliveryFormatJson {
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%.64q is not one of binary, json", *f), "format"))
	}
	errs = errs.Also(validateISODuration("backoffDelay", d.BackoffDelay))
	errs = errs.Also(validateISODuration("backoffMax", d.BackoffMax))
	errs = errs.Also(validateISODuration("retryAfterMax", d.RetryAfterMax))
	bad := validateISODuration("timeout", d.Timeout)
	if bad == nil && d.Timeout != nil && !strings.ContainsAny(*d.Timeout, "123456789") {
		bad = apis.ErrGeneric(fmt.Sprintf("%.64q is not more than 0", *d.Timeout), "timeout")
	}
	return errs.Also(bad)
}

// validateDestination is stricter than duckv1.ValidateDestination, which looks
// at the reference only without a uri and at CACerts only without a reference.
func validateDestination(ctx context.Context, d *duckv1.Destination) *apis.FieldError {
	var errs *apis.FieldError
	switch hasURI := !d.URI.IsEmpty(); {
	case d.Ref == nil && !hasURI:
		errs = apis.ErrGeneric("expected at least one, got none", "ref", "uri")
	case d.Ref == nil && !isHTTP(d.URI.URL()):
		errs = apis.ErrGeneric(fmt.Sprintf("%.128q is not an absolute http or https URL with a host and a port that there is, nor is there a ref that it could be relative to",
			d.URI.URL().Redacted()), "uri")
	case d.Ref != nil && hasURI && (d.URI.Scheme != "" || d.URI.Host != ""):
		errs = apis.ErrGeneric("expected a relative uri beside a ref, got an absolute one", "uri")
	}
	if d.Ref != nil {
		errs = errs.Also(validateRef(ctx, d.Ref).ViaField("ref"))
	}
	if d.URI != nil {
		text := d.URI.String()
		if plain, err := url.PathUnescape(text); err == nil {
			text = plain // as it was written, more or less
		}
		errs = errs.Also(validateLength("uri", text, maxURI))
	}
	if d.Audience != nil {
		errs = errs.Also(validateLength("audience", *d.Audience, maxAudience))
	}
	return errs.Also(validateCACerts(d.CACerts))
}

// ValidateAddress bounds an address that a destination was resolved to, as Validate bounds one in a
// spec. Its text is copied into the status of each source that refers to it, and its author may
// write as much of it as an object may have.
func ValidateAddress(addr *duckv1.Addressable) *apis.FieldError {
	var errs *apis.FieldError
	if addr.URL != nil {
		errs = errs.Also(validateLength("url", addr.URL.String(), maxURI))
	}
	if addr.Audience != nil {
		errs = errs.Also(validateLength("audience", *addr.Audience, maxAudience))
	}
	if addr.CACerts != nil {
		errs = errs.Also(validateLength("CACerts", *addr.CACerts, maxCACerts))
	}
	return errs.ViaField("status", "address")
}

func validateRef(ctx context.Context, ref *duckv1.KReference) *apis.FieldError {
	errs := ref.Validate(ctx)
	errs = errs.Also(validateLength("apiVersion", ref.APIVersion, maxAPIVersion))
	errs = errs.Also(validateLength("kind", ref.Kind, validation.DNS1123LabelMaxLength))
	errs = errs.Also(validateLength("name", ref.Name, validation.DNS1123SubdomainMaxLength))
	errs = errs.Also(validateLength("namespace", ref.Namespace, validation.DNS1123LabelMaxLength))
	if ref.Address != nil {
		errs = errs.Also(validateLength("address", *ref.Address, validation.DNS1123SubdomainMaxLength))
	}
	return errs
}

// isHTTP says whether a URL can be sent to.
func isHTTP(u *url.URL) bool {
	if (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return false
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return u.Port() == "" || err == nil && port > 0
}

// attributes are defined by CloudEvents. Knative's Source specification forbids
// overriding id, source, type and specversion; the others cannot be the name of
// an extension, and an override sets an extension.
var attributes = map[string]bool{
	"id": true, "source": true, "type": true, "specversion": true,
	"subject": true, "time": true, "datacontenttype": true, "dataschema": true, "data": true,
}

func validateOverrides(extensions map[string]string) *apis.FieldError {
	if len(extensions) > maxOverrides {
		return apis.ErrGeneric(fmt.Sprintf("has %d attributes, more than %d", len(extensions), maxOverrides), apis.CurrentField)
	}
	var errs *apis.FieldError
	for name, value := range extensions {
		switch {
		case attributes[name]:
			errs = errs.Also(apis.ErrGeneric("is an attribute of CloudEvents itself and must not be overridden", keyPath(name)))
		case strings.HasPrefix(name, "reschedule"):
			errs = errs.Also(apis.ErrGeneric("begins with reschedule: every delivery sets these attributes itself", keyPath(name)))
		case name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "":
			errs = errs.Also(apis.ErrGeneric("is not the name of a CloudEvents extension: lower-case letters and digits", keyPath(name)))
		case strings.ContainsFunc(value, unicode.IsControl):
			errs = errs.Also(apis.ErrGeneric("has a control character", keyPath(name)))
		default:
			errs = errs.Also(validateLength(keyPath(name), value, maxOverride))
		}
	}
	return errs
}

// keyPath names a key of a map, quoted unless it is plain: what a manifest
// holds must not write lines of its own into an error.
func keyPath(name string) string {
	if q := fmt.Sprintf("%.64q", name); q != `"`+name+`"` || name == "" {
		return q
	}
	return name
}
