package api

import "github.com/reschedule-dev/reschedule/pkg/adapter/schedule"

// Bounds of the texts that a request may carry, in bytes.
const (
	maxUID           = schedule.MaxUIDBytes
	maxReason        = 1024
	maxExtensionName = 64
)

// validAttribute returns an error for text that CloudEvents do not allow in an
// attribute of type String, such as noncharacters.
func validAttribute(field, s string) error {
	if err := schedule.ValidateText(field, s, len(s)); err != nil {
		return err
	}
	for i, r := range s {
		if r&0xfffe == 0xfffe || 0xfdd0 <= r && r <= 0xfdef {
			return schedule.Invalid(field, "has a Unicode noncharacter at byte %d", i)
		}
	}
	return nil
}
