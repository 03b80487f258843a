package main

import (
	_ "github.com/reschedule-dev/reschedule/pkg/why"
	_ "github.com/reschedule-dev/reschedule/sdk"
	_ "github.com/spf13/cobra"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/cli-runtime/pkg/genericclioptions"
	_ "k8s.io/cli-runtime/pkg/printers"
	_ "k8s.io/client-go/dynamic"
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/tools/portforward"
	_ "k8s.io/client-go/transport/spdy"
	_ "sigs.k8s.io/yaml"
)

func main() {}
