package schedule

import (
	"mime"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxKeyBytes is the length of the longest key.
const MaxKeyBytes = 512

// MaxUIDBytes is the length of the longest uid.
const MaxUIDBytes = 256

// deadLetterPrefix starts the key of a dead letter. No key of a user has a
// control character, so the two never collide.
const deadLetterPrefix = "\x01"

// ValidateKey returns an error unless key is 1 to 512 bytes of UTF-8 without control
// characters.
func ValidateKey(key string) error {
	if key == "" {
		return Invalid("key", "is empty")
	}
	return ValidateText("key", key, MaxKeyBytes)
}

// ValidateContentType returns an error unless s is a media type that a header can
// carry.
func ValidateContentType(field, s string) error {
	if err := ValidateText(field, s, len(s)); err != nil {
		return err
	}
	if t, _, err := mime.ParseMediaType(s); err != nil || !strings.Contains(t, "/") || s != strings.TrimSpace(s) {
		return Invalid(field, "%.64q is not a media type such as application/json", s)
	}
	return nil
}

// ValidateText returns an error unless s is UTF-8 without control characters, of at
// most so many bytes.
func ValidateText(field, s string, most int) error {
	if len(s) > most {
		return Invalid(field, "has %d bytes, more than %d", len(s), most)
	}
	for i, r := range s {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return Invalid(field, "is not UTF-8 at byte %d", i)
			}
		}
		if unicode.IsControl(r) {
			return Invalid(field, "has a control character at byte %d", i)
		}
	}
	return nil
}

// DeadLetterKey is the key under which a dead letter of the given revision
// waits beside the keys of users.
func DeadLetterKey(revision uint64) string {
	return deadLetterPrefix + strconv.FormatUint(revision, 36)
}

// IsDeadLetterKey reports whether the key is of a dead letter, not of a user.
func IsDeadLetterKey(key string) bool {
	return len(key) > 0 && key[0] == deadLetterPrefix[0]
}
