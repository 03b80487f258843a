package main

import (
	"context"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// kind is the kind whose objects expire.
type kind struct {
	get      func(ctx context.Context, namespace, name string) (metav1.Object, error)
	remove   func(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error
	informer func() cache.SharedIndexInformer
}

// kindOf returns the kind of the variable RESOURCE, such as widgets.v1.example.com. Unset: ConfigMaps.
func kindOf(config *rest.Config) (kind, error) {
	text := os.Getenv("RESOURCE")
	if text == "" {
		client, err := kubernetes.NewForConfig(config)
		return configMaps(client), err
	}
	resource, _ := schema.ParseResourceArg(text)
	if resource == nil {
		return kind{}, fmt.Errorf("RESOURCE: %q is not a resource such as widgets.v1.example.com", text)
	}
	client, err := metadata.NewForConfig(config)
	return metadataOf(client, *resource), err
}

// resync is the interval at which the informer reports every object again.
const resync = 10 * time.Hour

// configMaps reads whole objects, as most operators do. The informer is of NAMESPACE. Unset: of all.
func configMaps(client kubernetes.Interface) kind {
	return kind{
		get: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			return client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		remove: func(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
			return client.CoreV1().ConfigMaps(namespace).Delete(ctx, name, options)
		},
		informer: func() cache.SharedIndexInformer {
			return coreinformers.NewFilteredConfigMapInformer(client, os.Getenv("NAMESPACE"), resync, byNamespace, labelled)
		},
	}
}

// metadataOf reads the metadata of objects of any kind.
func metadataOf(client metadata.Interface, resource schema.GroupVersionResource) kind {
	return kind{
		get: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			return client.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		remove: func(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
			return client.Resource(resource).Namespace(namespace).Delete(ctx, name, options)
		},
		informer: func() cache.SharedIndexInformer {
			return metadatainformer.NewFilteredMetadataInformer(client, resource, os.Getenv("NAMESPACE"), resync, byNamespace, labelled).Informer()
		},
	}
}

var byNamespace = cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}

func labelled(o *metav1.ListOptions) { o.LabelSelector = label }
