package api

import "github.com/reschedule-dev/reschedule/pkg/adapter/schedule"

// Bounds of the texts that a request may carry, in bytes.
const (
	maxUID    = schedule.MaxUIDBytes
	maxReason = 1024
	// maxAttribute bounds each attribute of an event. In binary mode it is a
	// header, and servers commonly take 8 KiB of one.
	maxAttribute     = 4096
	maxExtensions    = 64
	maxExtensionName = 64
)

// validAttribute returns an error for text that CloudEvents do not allow in an
// attribute of type String, such as noncharacters.
func validAttribute(field, s string) error {
	if err := schedule.ValidateText(field, s, maxAttribute); err != nil {
		return err
	}
	for i, r := range s {
		if r&0xfffe == 0xfffe || 0xfdd0 <= r && r <= 0xfdef {
			return schedule.Invalid(field, "has a Unicode noncharacter at byte %d", i)
		}
	}
	return nil
}
