// Package objects is the seam between the watches of a source and the API server:
// what is asked, and what comes back.
//
// It guarantees that the content of objects has no place in it: an [Object] is its
// metadata, without managedFields.
//
// How it works: [API] is implemented for a real API server by package kube, and by
// the tests of package watch. The answers are handed over object by object, so that
// neither side holds a list.
//
// It leaves to others: the calls (kube), and what a change means (watch).
package objects

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// API makes the calls of a watching source. Every call uses a token of the source's
// account, never the rights of the adapter.
type API interface {
	// Resolve finds a kind. Its error is ErrNoSuchKind when the API server has none
	// of that name. Without a version it returns the version that the API server prefers.
	Resolve(ctx context.Context, a Account, group, version, kind string) (Resource, error)
	// List hands over one page. With the turn of the caller, who makes one list at a time, it
	// waits for nothing that is limited for the account's namespace. Its error is ErrGone when
	// the page's snapshot has expired, and *Forbidden when the account may not list.
	List(ctx context.Context, a Account, q Query, turn Turn, each func(*Object) error) (Page, error)
	// Newest returns the version that a list would have now, at the cost of a list of one object. It fails as
	// List does.
	Newest(ctx context.Context, a Account, q Query) (string, error)
	// Watch hands over the events after q.Version until the stream ends, which is no
	// error. Its error is ErrGone when the version has expired, *Forbidden when the
	// account may not watch, or what a function of h returned.
	Watch(ctx context.Context, a Account, q Query, h Handler) error
}

// Turn is what the callers of lists share.
type Turn interface {
	// Without calls wait without the turn, and returns when the turn has come again. On an
	// error, also of wait, the turn is over.
	Without(ctx context.Context, wait func() error) error
}

// Handler is what a watch calls, one function at a time.
type Handler struct {
	// Begin is called when there is an event to read, also between two events. Before the
	// first Begin, and from Idle to the next Begin, the watch holds a few KB.
	Begin func() error
	Each  func(EventType, *Object) error
	// Idle is called between two events, before the watch waits for more.
	Idle func() error
}

// Account is a service account.
type Account struct{ Namespace, Name string }

// User is the account's name as a user of the API server.
func (a Account) User() string { return "system:serviceaccount:" + a.Namespace + ":" + a.Name }

// Resource is a kind as the API server serves it.
type Resource struct {
	Group, Version, Kind string
	Plural               string
	Namespaced           bool
}

// APIVersion is group and version as objects carry them.
func (r Resource) APIVersion() string {
	if r.Group == "" {
		return r.Version
	}
	return r.Group + "/" + r.Version
}

// Name is the resource with its group, as kubectl takes it.
func (r Resource) Name() string {
	if r.Group == "" {
		return r.Plural
	}
	return r.Plural + "." + r.Group
}

// Query is what is listed or watched.
type Query struct {
	Resource  Resource
	Namespace string // "" = all
	Selector  string // of labels, "" = all
	Continue  string // of a list: the token of the page before
	Version   string // of a watch: where to go on
}

// Page is the end of a page.
type Page struct {
	Continue string // the token of the next page, "" = this was the last one
	Version  string // of the whole list: a watch goes on there
}

// EventType is what happened to an object.
type EventType string

// The types, as the API server names them. A bookmark's object has a version only.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
	Bookmark EventType = "BOOKMARK"
)

// Object is the metadata of an object.
type Object struct {
	Namespace, Name, UID string
	Version              string // resourceVersion
	Generation           int64  // 0 = the kind has none
	Created              time.Time
	Deleted              string // deletionTimestamp, "" = none
	Labels               map[string]any
	Owners               []Owner
	// Metadata is all of it, except managedFields; nil when it is too large.
	Metadata map[string]any
	// TooLarge: the metadata has more bytes than a watch reads. Only the names, which may be
	// cut, the uid and the version are known.
	TooLarge bool
}

// Owner is an entry of ownerReferences.
type Owner struct{ APIVersion, Kind, Name, UID string }

// Path is "namespace/name", or "name" of an object without a namespace. The pages of
// a list are in this order.
func (o *Object) Path() string {
	if o.Namespace == "" {
		return o.Name
	}
	return o.Namespace + "/" + o.Name
}

// FromMetadata reads the fields of metadata.
func FromMetadata(m map[string]any) *Object {
	text := func(name string) string { s, _ := m[name].(string); return s }
	o := &Object{
		Namespace: text("namespace"), Name: text("name"), UID: text("uid"), Version: text("resourceVersion"),
		Deleted: text("deletionTimestamp"), Metadata: m,
	}
	o.Generation, _ = m["generation"].(int64)
	o.Labels, _ = m["labels"].(map[string]any)
	o.Created, _ = time.Parse(time.RFC3339, text("creationTimestamp"))
	owners, _ := m["ownerReferences"].([]any)
	for _, entry := range owners {
		owner, _ := entry.(map[string]any)
		text := func(name string) string { s, _ := owner[name].(string); return s }
		o.Owners = append(o.Owners, Owner{APIVersion: text("apiVersion"), Kind: text("kind"), Name: text("name"), UID: text("uid")})
	}
	return o
}

// ErrGone means that the API server has no history any more for what was asked; a new list is
// needed.
var ErrGone = errors.New("the resource version is too old")

// ErrNoSuchKind means that the API server does not serve the kind, or not yet.
var ErrNoSuchKind = errors.New("no such kind")

// Forbidden is a right that an account does not have.
type Forbidden struct {
	Account   Account
	Verb      string
	Resource  string // as kubectl takes it
	Sub       string // the subresource, "" = none
	Namespace string // "" = all
	Detail    string // the answer of the API server, shortened
}

// Error names the account, the verb and the resource, and the command that checks it.
func (f *Forbidden) Error() string {
	if f.Verb == "" {
		return fmt.Sprintf("service account %s/%s has no token: %s", f.Account.Namespace, f.Account.Name, f.Detail)
	}
	where, flag := "in all namespaces", "-A"
	if f.Namespace != "" {
		where, flag = "in namespace "+f.Namespace, "-n "+f.Namespace
	}
	resource, check := f.Resource, f.Resource
	if f.Sub != "" {
		resource, check = f.Resource+"/"+f.Sub, f.Resource+" --subresource="+f.Sub
	}
	return fmt.Sprintf("service account %s/%s may not %s %s %s; check it with: kubectl auth can-i %s %s %s --as=%s",
		f.Account.Namespace, f.Account.Name, f.Verb, resource, where, f.Verb, check, flag, f.Account.User())
}
