{{- /* reschedule.file: a file of config/, with the namespace of this release. In the policy for tokens a
namespace of another name is added to those whose sources must not watch. */ -}}
{{- define "reschedule.file" -}}
{{- $namespace := default .root.Release.Namespace .root.Values.namespace -}}
{{- $text := .root.Files.Get .path -}}
{{- if not $text -}}{{- fail (printf "the chart has no file %s" .path) -}}{{- end -}}
{{- $text = $text | replace "namespace: knative-eventing" (printf "namespace: %q" $namespace) -}}
{{- $text = $text | replace ":knative-eventing:" (printf ":%s:" $namespace) | replace ".knative-eventing.svc" (printf ".%s.svc" $namespace) -}}
{{- if not (has $namespace (list "knative-eventing" "knative-serving" "reschedule-system")) -}}
  {{- $text = $text | replace "'reschedule-system']" (printf "'reschedule-system', '%s']" $namespace) -}}
{{- end -}}
{{- $text | replace "app.kubernetes.io/version: devel" (printf "app.kubernetes.io/version: %q" .root.Chart.AppVersion) -}}
{{- end -}}

{{- /* reschedule.workload: the object of a program, with its values. */ -}}
{{- define "reschedule.workload" -}}
{{- $container := dict "name" .name -}}
{{- $env := list -}}
{{- with .values.resources -}}
  {{- $_ := set $container "resources" . -}}
  {{- with (dig "limits" "memory" "" .) -}}
    {{- $env = list (dict "name" "GOMEMLIMIT" "value" (include "reschedule.memory" (dict "limit" . "percent" $.percent))) -}}
  {{- end -}}
{{- end -}}
{{- if $env -}}{{- $_ := set $container "env" $env -}}{{- end -}}
{{- with .image -}}{{- $_ := set $container "image" . -}}{{- end -}}
{{- $pod := dict "containers" (list $container) -}}
{{- with .root.Values.imagePullSecrets -}}{{- $_ := set $pod "imagePullSecrets" . -}}{{- end -}}
{{- $pod = include "reschedule.merge" (dict "into" $pod "with" .values.pod) | fromYaml -}}
{{- $object := include "reschedule.merge" (dict "into" .object "with" (dict "spec" (dict "template" (dict "spec" $pod)))) | fromYaml -}}
{{- if .values.extraArgs -}}
  {{- $first := first $object.spec.template.spec.containers -}}
  {{- $_ := set $first "args" (concat (default list $first.args) .values.extraArgs) -}}
{{- end -}}
{{- toYaml $object -}}
{{- end -}}

{{- /* reschedule.replicated: an object with the patches of the component config/replicated. */ -}}
{{- define "reschedule.replicated" -}}
{{- $object := .object -}}
{{- range (.root.Files.Get "config/replicated/Kustomization" | fromYaml).patches -}}
  {{- if and (eq .target.kind $object.kind) (eq .target.name $object.metadata.name) -}}
    {{- if hasPrefix "- " .patch -}}
      {{- range .patch | fromYamlArray -}}
        {{- if eq .path "/spec/template/spec/containers/0/args/-" -}}
          {{- $first := first $object.spec.template.spec.containers -}}
          {{- $_ := set $first "args" (append $first.args .value) -}}
        {{- else if eq .path "/spec/ingress/-" -}}
          {{- $_ := set $object.spec "ingress" (append $object.spec.ingress .value) -}}
        {{- else -}}
          {{- fail (printf "config/replicated has a patch of %s, which this chart cannot apply" .path) -}}
        {{- end -}}
      {{- end -}}
    {{- else -}}
      {{- $object = include "reschedule.merge" (dict "into" $object "with" (omit (.patch | fromYaml) "apiVersion" "kind")) | fromYaml -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- toYaml $object -}}
{{- end -}}
