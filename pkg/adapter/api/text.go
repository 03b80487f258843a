package api

import (
	"unicode"
	"unicode/utf8"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Bounds of the texts that a request may carry, in bytes.
const (
	maxUID    = 256
	maxReason = 1024
	// maxAttribute bounds each attribute of an event. In binary mode it is a
	// header, and servers commonly take 8 KiB of one.
	maxAttribute     = 4096
	maxExtensions    = 64
	maxExtensionName = 64
)

// validText wants UTF-8 of at most so many bytes without control characters.
func validText(field, s string, most int) error {
	if len(s) > most {
		return schedule.Invalid(field, "has %d bytes, more than %d", len(s), most)
	}
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			if c < ' ' || c == 0x7f {
				return schedule.Invalid(field, "has a control character at byte %d", i)
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return schedule.Invalid(field, "is not UTF-8 at byte %d", i)
		case unicode.IsControl(r):
			return schedule.Invalid(field, "has a control character at byte %d", i)
		}
		i += size
	}
	return nil
}

// validAttribute wants what CloudEvents allow in an attribute of type String:
// beyond validText, no noncharacters.
func validAttribute(field, s string) error {
	if err := validText(field, s, maxAttribute); err != nil {
		return err
	}
	for i, r := range s {
		if r&0xfffe == 0xfffe || 0xfdd0 <= r && r <= 0xfdef {
			return schedule.Invalid(field, "has a Unicode noncharacter at byte %d", i)
		}
	}
	return nil
}
