package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/operator-registry/alpha/declcfg"
	"github.com/operator-framework/operator-registry/alpha/property"
)

// writeCatalog writes the file-based catalog of one bundle, and reads it as OLM does.
func writeCatalog(dir, image, file string) error {
	if !strings.Contains(image, "@sha256:") {
		return fmt.Errorf("-image is %q, which has no digest", image)
	}
	bundle, err := manifests.GetBundleFromDir(dir)
	if err != nil {
		return fmt.Errorf("the bundle cannot be read: %w", err)
	}
	csv := bundle.CSV
	properties := []property.Property{
		property.MustBuildPackage(packageName, csv.Spec.Version.String()),
		property.MustBuildCSVMetadata(*csv),
	}
	for _, crd := range csv.Spec.CustomResourceDefinitions.Owned {
		_, group, _ := strings.Cut(crd.Name, ".")
		properties = append(properties, property.MustBuildGVK(group, crd.Version, crd.Kind))
	}
	related := []declcfg.RelatedImage{{Image: image}}
	for _, i := range csv.Spec.RelatedImages {
		related = append(related, declcfg.RelatedImage{Name: i.Name, Image: i.Image})
	}
	catalog := declcfg.DeclarativeConfig{
		Packages: []declcfg.Package{{
			Schema: declcfg.SchemaPackage, Name: packageName, DefaultChannel: bundle.DefaultChannel,
			Icon: &declcfg.Icon{Data: icon, MediaType: "image/svg+xml"}, Description: csv.Annotations["description"],
		}},
		Channels: []declcfg.Channel{{
			Schema: declcfg.SchemaChannel, Package: packageName, Name: bundle.DefaultChannel,
			Entries: []declcfg.ChannelEntry{{Name: csv.Name, SkipRange: csv.Annotations["olm.skipRange"]}},
		}},
		Bundles: []declcfg.Bundle{{
			Schema: declcfg.SchemaBundle, Package: packageName, Name: csv.Name, Image: image,
			Properties: properties, RelatedImages: related,
		}},
	}
	var text bytes.Buffer
	if err := declcfg.WriteYAML(catalog, &text); err != nil {
		return fmt.Errorf("the catalog: %w", err)
	}
	read, err := declcfg.LoadReader(bytes.NewReader(text.Bytes()))
	if err != nil {
		return fmt.Errorf("the catalog cannot be read: %w", err)
	}
	if len(read.Others) > 0 {
		return errors.New("the catalog has blobs of an unknown schema")
	}
	if _, err := declcfg.ConvertToModel(*read); err != nil {
		return fmt.Errorf("the catalog is not valid: %w", err)
	}
	return os.WriteFile(file, text.Bytes(), 0o644)
}
