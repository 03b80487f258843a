package resources

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// The objects in the system namespace that all sources share.
const (
	// AdapterName is the name of the adapter's StatefulSet and Service.
	AdapterName = "reschedule-adapter"
	// TLSSecretName is the name of the Secret with the adapter's certificate.
	TLSSecretName = "reschedule-adapter-server-tls"
	// caCertsKey is the field of that Secret with the authority behind the
	// certificate, as cert-manager writes it.
	caCertsKey = "ca.crt"
)

// EventType is the type of the events that a source makes itself.
const EventType = "dev.reschedule.due"

// WatchEventTypes are the types of its events about objects that it watches.
var WatchEventTypes = []string{"dev.knative.apiserver.ref.add", "dev.knative.apiserver.ref.update", "dev.knative.apiserver.ref.delete"}

// EventSource is the source attribute of the events that a source makes itself.
func EventSource(source types.NamespacedName) string {
	return "/apis/" + sources.GroupName + "/" + v1alpha1.SchemeGroupVersion.Version +
		"/namespaces/" + source.Namespace + "/" + sources.RescheduleSourcesResource.Resource + "/" + source.Name
}
