package reschedulesource

import (
	"strings"
	"sync/atomic"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"knative.dev/pkg/configmap"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// administrator holds the settings of config-reschedule. A ConfigMap that is not
// valid changes nothing, nor does a deleted one.
type administrator struct {
	current  atomic.Pointer[ceilings.Config]
	logger   *zap.SugaredLogger
	recorder record.EventRecorder
	changed  func()

	seen bool // there was a ConfigMap; the watcher calls one at a time
}

func newAdministrator(logger *zap.SugaredLogger, recorder record.EventRecorder, changed func()) *administrator {
	a := &administrator{logger: logger, recorder: recorder, changed: changed}
	shipped, err := ceilings.Parse(nil)
	if err != nil {
		logger.Panicw("The shipped ceilings are not valid", zap.Error(err))
	}
	a.current.Store(shipped)
	return a
}

func (a *administrator) watch(cmw configmap.Watcher) { cmw.Watch(ceilings.ConfigMapName, a.observe) }

// observe takes a new state of the ConfigMap. One without a uid means that there
// is none.
func (a *administrator) observe(cm *corev1.ConfigMap) {
	if cm.UID == "" && a.seen {
		a.logger.Warnf("ConfigMap %s was deleted: the ceilings stay as they were", ceilings.ConfigMapName)
		return
	}
	a.seen = a.seen || cm.UID != ""
	config, err := ceilings.Parse(cm.Data)
	if err != nil {
		a.logger.Errorw("The ceilings stay as they were: the ConfigMap is not valid", zap.Error(err))
		a.recorder.Eventf(cm, corev1.EventTypeWarning, "InvalidConfig", "The ceilings stay as they were: %v", err)
		return
	}
	a.current.Store(config)
	a.changed()
}

// limit sets Limited when the spec asks for more than the ceilings allow.
func (r *Reconciler) limit(source *v1alpha1.RescheduleSource) {
	_, cuts := r.ceilings().For(source.Namespace).Limits(&source.Spec)
	if len(cuts) == 0 {
		source.Status.ClearLimited()
		return
	}
	texts := make([]string, len(cuts))
	for i, c := range cuts {
		texts[i] = c.String()
	}
	source.Status.MarkLimited("AboveCeiling", "The administrator's ceilings in ConfigMap %s/%s: %s.",
		r.systemNamespace, ceilings.ConfigMapName, strings.Join(texts, "; "))
}
