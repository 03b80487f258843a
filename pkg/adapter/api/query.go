package api

import (
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// parameter is one that a call takes.
type parameter struct {
	name  string
	value string
	given bool
}

// parseQuery fills in the parameters. One that the call does not take or that
// comes twice is refused rather than ignored: a misspelt prefix would cancel
// or list something else than was meant.
func parseQuery(raw string, params ...*parameter) error {
	for rest := raw; rest != ""; {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		if pair == "" {
			continue
		}
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(rawName)
		if err != nil {
			return schedule.Invalid("query", "%.64q is not percent-encoded", rawName)
		}
		p := find(params, name)
		if p == nil {
			return schedule.Invalid(shown(name), "is not a parameter of this call")
		}
		if p.given {
			return schedule.Invalid(p.name, "is given twice")
		}
		if p.value, err = url.QueryUnescape(rawValue); err != nil {
			return schedule.Invalid(p.name, "is not percent-encoded")
		}
		p.given = true
	}
	return nil
}

func find(params []*parameter, name string) *parameter {
	for _, p := range params {
		if p.name == name {
			return p
		}
	}
	return nil
}

// shown makes a caller's own name fit for an error: short, and UTF-8.
func shown(name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD")
	if len(name) <= 64 {
		return name
	}
	end := 64
	for !utf8.RuneStart(name[end]) {
		end--
	}
	return name[:end] + "…"
}

// noQuery refuses parameters of calls that have none.
func (c *call) noQuery() error {
	if c.r.URL.RawQuery == "" {
		return nil
	}
	return parseQuery(c.r.URL.RawQuery)
}

// noModifiers refuses parameters and conditions of calls that have neither.
func (c *call) noModifiers() error {
	if err := c.noQuery(); err != nil {
		return err
	}
	return unconditional(c.r.Header, "If-Match", "If-None-Match")
}

// pageOptions reads the parameters of every list, and more.
func pageOptions(raw string, more ...*parameter) (queue.ListOptions, error) {
	prefix, limit, token := parameter{name: "prefix"}, parameter{name: "limit"}, parameter{name: "continue"}
	o := queue.ListOptions{Limit: defaultLimit}
	if err := parseQuery(raw, append(more, &prefix, &limit, &token)...); err != nil {
		return o, err
	}
	if err := schedule.ValidateText("prefix", prefix.value, schedule.MaxKeyBytes); err != nil {
		return o, err
	}
	o.Prefix, o.Continue = prefix.value, token.value
	if limit.value != "" {
		n, err := strconv.ParseUint(limit.value, 10, 32)
		if err != nil || n < 1 || n > maxLimit {
			return o, schedule.Invalid("limit", "%.64q is not a number from 1 to %d", limit.value, maxLimit)
		}
		o.Limit = int(n)
	}
	return o, nil
}

// listOptions reads the parameters of a list; one that is empty is absent.
func listOptions(raw string) (queue.ListOptions, error) {
	order, state := parameter{name: "order"}, parameter{name: "state"}
	o, err := pageOptions(raw, &order, &state)
	if err != nil {
		return o, err
	}
	switch o.State = queue.State(state.value); o.State {
	case "", queue.Waiting, queue.Due, queue.Retrying, queue.InFlight:
	default:
		return o, schedule.Invalid("state", "%.64q is not one of waiting, due, retrying, inFlight", state.value)
	}
	switch order.value {
	case "", "key":
	case "due":
		o.ByDue = true
	default:
		return o, schedule.Invalid("order", "%.64q is not one of key, due", order.value)
	}
	return o, nil
}

// selection reads the parameters of a call that changes many keys: which ones must be
// said, so that a forgotten parameter does not change all. what is what all=true does.
func selection(raw, what string, more ...*parameter) (string, error) {
	prefix, all := parameter{name: "prefix"}, parameter{name: "all"}
	if err := parseQuery(raw, append(more, &prefix, &all)...); err != nil {
		return "", err
	}
	every, err := all.bool()
	switch {
	case err != nil:
		return "", err
	case every && prefix.given:
		return "", schedule.Invalid("all", "cannot be given together with prefix")
	case every:
		return "", nil
	case !prefix.given:
		return "", schedule.Invalid("prefix", "is missing; give prefix, or all=true to %s", what)
	case prefix.value == "":
		return "", schedule.Invalid("prefix", "is empty; give all=true to %s", what)
	}
	return prefix.value, schedule.ValidateText("prefix", prefix.value, schedule.MaxKeyBytes)
}

// bool is the parameter as a boolean; one that is absent is false.
func (p *parameter) bool() (bool, error) {
	if p.given && p.value != "true" && p.value != "false" {
		return false, schedule.Invalid(p.name, "%.64q is not true or false", p.value)
	}
	return p.value == "true", nil
}

// cancelUID reads the parameter of a DELETE.
func cancelUID(raw string) (string, error) {
	if raw == "" {
		return "", nil
	}
	uid := parameter{name: "uid"}
	if err := parseQuery(raw, &uid); err != nil {
		return "", err
	}
	if uid.given && uid.value == "" { // an unset variable must not make the DELETE unconditional
		return "", schedule.Invalid("uid", "is empty")
	}
	return uid.value, schedule.ValidateText("uid", uid.value, maxUID)
}
