// Package optional follows a kind that the cluster may not have, such as Knative's EventPolicy.
//
// It guarantees that a missing kind holds up no start and fills no log, and that its objects are known
// within a minute of its definition, without a restart. Only an API server that says that the kind does
// not exist counts: while it cannot be reached or refuses the list, the kind is not known.
//
// How it works: client-go's informer lists again and again, at most 30 to 60 seconds apart. [Follow]
// handles its errors. When the definition is removed, the last known objects stay until it is back.
package optional

import (
	"context"
	"fmt"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
)

// enough is how many times in a row the API server must answer that it does not have the kind before
// that counts; a second or two. One that starts answers so before it knows all kinds.
const enough = 2

// Kind is what is known of a kind.
type Kind struct {
	informer cache.SharedIndexInformer
	notFound int // answers in a row that there is no such kind
	absent   atomic.Bool
}

// Follow prepares an informer that does not run yet. It calls absent, once, when the cluster does not
// have its kind.
func Follow(informer cache.SharedIndexInformer, absent func()) (*Kind, error) {
	k := &Kind{informer: informer}
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if !apierrors.IsNotFound(err) {
			k.notFound = 0
			cache.DefaultWatchErrorHandler(ctx, r, err)
			return
		}
		if k.notFound++; k.notFound >= enough && !k.absent.Swap(true) {
			absent()
		}
	})
	if err != nil {
		return nil, fmt.Errorf("optional: %w", err)
	}
	return k, nil
}

// Known reports whether the informer has its first list, or the cluster does not have the kind.
func (k *Kind) Known() bool { return k.informer.HasSynced() || k.absent.Load() }
