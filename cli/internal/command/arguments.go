package command

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// option is a flag in the command line of a container.
type option struct {
	name, value, container string
	apart                  bool // value is the next word, which may be no value of it
}

// optionsOf are the flags of containers: --name=value, --name value and --name.
func optionsOf(containers []map[string]any) (all []option) {
	for _, c := range containers {
		var words []string
		for _, field := range []string{"command", "args"} {
			texts, _, _ := unstructured.NestedStringSlice(c, field)
			words = append(words, strings.Fields(strings.Join(texts, " "))...) // a shell has them in one text
		}
		for i, word := range words {
			flag := strings.TrimLeft(word, "-")
			if flag == word {
				continue
			}
			o := option{container: nameOf(c)}
			var complete bool
			if o.name, o.value, complete = strings.Cut(flag, "="); !complete && i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
				o.value, o.apart = words[i+1], true
			}
			o.value = strings.Trim(o.value, `"'`)
			all = append(all, o)
		}
	}
	return all
}

func nameOf(object map[string]any) string {
	name, _ := object["name"].(string)
	return name
}

// optionOf is the first of the options with one of the names.
func optionOf(all []option, names ...string) (option, bool) {
	if i := slices.IndexFunc(all, func(o option) bool { return slices.Contains(names, o.name) }); i >= 0 {
		return all[i], true
	}
	return option{}, false
}

// metrics is where the pods of a workload serve metrics. Port 0: that is not known, and from is why.
type metrics struct {
	port   int64
	path   string // "": the default
	from   string
	secure bool // they may ask for a token
}

// metricsPorts are names of ports with metrics, the most certain first.
var metricsPorts = []string{"metrics", "http-metrics", "https-metrics", "metrics-https", "http-prom", "prometheus", "prom", "https"}

// findMetrics finds the metrics of a workload. kube-rbac-proxy stands in front of them where there is
// one: behind it they are only on a loopback address.
func findMetrics(target *unstructured.Unstructured) metrics {
	all := containers(target)
	for _, c := range all {
		image, _ := c["image"].(string)
		if !strings.Contains(nameOf(c)+image, "kube-rbac-proxy") {
			continue
		}
		if o, ok := optionOf(optionsOf([]map[string]any{c}), "secure-listen-address"); ok {
			if port, _ := portOf(o.value); port != 0 {
				return metrics{port: port, from: "--secure-listen-address of container " + nameOf(c), secure: true}
			}
		}
		for _, p := range portsOf(c) {
			return metrics{port: p.number, from: fmt.Sprintf("port %s of container %s", p.name, nameOf(c)), secure: true}
		}
	}
	options := optionsOf(all)
	annotations, _, _ := unstructured.NestedStringMap(target.Object, "spec", "template", "metadata", "annotations")
	annotated, _ := strconv.ParseInt(annotations["prometheus.io/port"], 10, 32)
	secure, _ := optionOf(options, "metrics-secure")
	found := metrics{from: "no argument, port or annotation names it", secure: secure.value == "true"}
	if o, ok := optionOf(options, "metrics-bind-address", "metrics-addr", "metrics-listen-address", "metrics-port"); ok {
		port, loopback := portOf(o.value)
		switch {
		case o.value == "0" || o.value == "":
			return metrics{from: "--" + o.name + " switches them off"}
		case loopback:
			return metrics{from: "--" + o.name + " is an address in the pod alone"}
		case port != 0:
			found.port, found.from = port, "--"+o.name+" of container "+o.container
		}
	}
	if found.port == 0 && annotated > 0 {
		found.port, found.from = annotated, "annotation prometheus.io/port of the pods"
	}
	for _, name := range metricsPorts {
		for _, c := range all {
			for _, p := range portsOf(c) {
				if found.port == 0 && p.name == name {
					found.port, found.from = p.number, fmt.Sprintf("port %s of container %s", name, nameOf(c))
				}
			}
		}
	}
	if annotated == 0 || annotated == found.port {
		if found.path = annotations["prometheus.io/path"]; found.path == "/metrics" {
			found.path = ""
		}
	}
	found.secure = found.secure || found.port == 8443 || strings.Contains(found.from, "https") || annotations["prometheus.io/scheme"] == "https"
	return found
}

// portOf is the port of an address such as :8080, or of a port alone; 0: it has none.
func portOf(address string) (port int64, loopback bool) {
	colon := strings.LastIndexByte(address, ':')
	port, err := strconv.ParseInt(address[colon+1:], 10, 32)
	if err != nil || port < 1 || port > 65535 {
		return 0, false
	}
	return port, slices.Contains([]string{"127.0.0.1", "localhost", "[::1]"}, address[:max(colon, 0)])
}

type containerPort struct {
	name   string
	number int64
}

func portsOf(container map[string]any) (found []containerPort) {
	all, _, _ := unstructured.NestedSlice(container, "ports")
	for _, p := range all {
		p, _ := p.(map[string]any)
		number, _, _ := unstructured.NestedInt64(p, "containerPort")
		found = append(found, containerPort{cmp.Or(nameOf(p), fmt.Sprint(number)), number})
	}
	return found
}

// election is what the arguments say of leader election. Without a flag nothing is known.
type election struct {
	flag string
	on   bool
}

func findElection(target *unstructured.Unstructured) election {
	o, ok := optionOf(optionsOf(containers(target)), "leader-elect", "enable-leader-election", "leader-election")
	if !ok {
		return election{}
	}
	on, err := strconv.ParseBool(o.value)
	return election{"--" + o.name, on || err != nil || o.apart} // what follows a flag of this kind is not its value
}
