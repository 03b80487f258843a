// Package sources names the API group of RescheduleSource.
package sources

import "k8s.io/apimachinery/pkg/runtime/schema"

// GroupName is the API group.
const GroupName = "sources.reschedule.dev"

// RescheduleSourcesResource is what RBAC and dynamic clients call the resource.
var RescheduleSourcesResource = schema.GroupResource{Group: GroupName, Resource: "reschedulesources"}
