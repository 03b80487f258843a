{{- /* reschedule.merge: the map "with" over the map "into", as a strategic merge patch: maps are merged,
lists whose items have names are merged by name, all else is replaced. */ -}}
{{- define "reschedule.merge" -}}
{{- $out := deepCopy .into -}}
{{- range $key, $new := .with -}}
  {{- $old := get $out $key -}}
  {{- if and (kindIs "map" $new) (kindIs "map" $old) -}}
    {{- $_ := set $out $key (include "reschedule.merge" (dict "into" $old "with" $new) | fromYaml) -}}
  {{- else if and (kindIs "slice" $new) (kindIs "slice" $old) (include "reschedule.named" $new) -}}
    {{- $items := list -}}
    {{- $known := dict -}}
    {{- range $item := $old -}}
      {{- $_ := set $known $item.name true -}}
      {{- range $change := $new -}}
        {{- if eq $change.name $item.name -}}
          {{- $item = include "reschedule.merge" (dict "into" $item "with" $change) | fromYaml -}}
        {{- end -}}
      {{- end -}}
      {{- $items = append $items $item -}}
    {{- end -}}
    {{- range $change := $new -}}
      {{- if not (hasKey $known $change.name) -}}
        {{- $items = append $items $change -}}
      {{- end -}}
    {{- end -}}
    {{- $_ := set $out $key $items -}}
  {{- else -}}
    {{- $_ := set $out $key $new -}}
  {{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{- /* reschedule.named: "true" for a list whose items have names. */ -}}
{{- define "reschedule.named" -}}
{{- if . -}}{{- if kindIs "map" (first .) -}}{{- if hasKey (first .) "name" -}}true{{- end -}}{{- end -}}{{- end -}}
{{- end -}}

{{- /* reschedule.memory: GOMEMLIMIT, a share in percent of a limit of memory. */ -}}
{{- define "reschedule.memory" -}}
{{- $mebibytes := trimSuffix "Gi" (trimSuffix "Mi" .limit) | int -}}
{{- if hasSuffix "Gi" .limit -}}{{- $mebibytes = mul $mebibytes 1024 -}}{{- end -}}
{{- printf "%dMiB" (div (mul $mebibytes .percent) 100) -}}
{{- end -}}
