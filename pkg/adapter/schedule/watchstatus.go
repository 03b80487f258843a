package schedule

// WatchStatus is what a watching source reports about its watches.
type WatchStatus struct {
	Objects    int64 // that are watched
	Generation int64 // of the settings that the report is about
	Status     string
	Reason     string // "" when the status is True
	Message    string
	Complete   bool // every resource had a complete list once, whatever the status is now
}

// The statuses and reasons of a WatchStatus.
const (
	WatchTrue    = "True"    // the list of every resource is complete
	WatchFalse   = "False"   // a reason below keeps a resource from being watched
	WatchUnknown = "Unknown" // the first lists are under way

	WatchListing     = "Listing"
	WatchNoSuchKind  = "NoSuchKind"
	WatchForbidden   = "Forbidden"
	WatchUnreachable = "Unreachable"
	WatchInvalidKey  = "InvalidKey"
	// WatchQuotaExceeded: changes wait, because the source or its namespace has as much
	// stored as it may have.
	WatchQuotaExceeded = "QuotaExceeded"
)
