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

// deadLetterPrefix starts the key of a dead letter. No key of a user has a
// control character, so the two never meet.
const deadLetterPrefix = "\x01"

// ValidateKey reports why key cannot be one: it is 1 to 512 bytes of UTF-8
// without control characters.
func ValidateKey(key string) error {
	switch {
	case key == "":
		return Invalid("key", "is empty")
	case len(key) > MaxKeyBytes:
		return Invalid("key", "has %d bytes, more than %d", len(key), MaxKeyBytes)
	}
	return validText("key", key)
}

// ValidateContentType wants a media type that can be the value of a header.
func ValidateContentType(field, s string) error {
	if err := validText(field, s); err != nil {
		return err
	}
	if t, _, err := mime.ParseMediaType(s); err != nil || !strings.Contains(t, "/") || s != strings.TrimSpace(s) {
		return Invalid(field, "%.64q is not a media type such as application/json", s)
	}
	return nil
}

// validText wants UTF-8 without control characters.
func validText(field, s string) error {
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

// IsDeadLetterKey tells the keys of dead letters from those of users.
func IsDeadLetterKey(key string) bool {
	return len(key) > 0 && key[0] == deadLetterPrefix[0]
}
