{{/* The release's name, short enough that names of pods stay below 63 characters. */}}
{{- define "pentimento.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 24 | trimSuffix "-" -}}
{{- end }}

{{- define "pentimento.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{/* Labels of an object that belongs to the whole release. */}}
{{- define "pentimento.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Labels of an object of one component. */}}
{{- define "pentimento.componentLabels" -}}
{{ include "pentimento.labels" .root }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{/* Whether pods serve and call by TLS: empty if not. */}}
{{- define "pentimento.secure" -}}
{{- .Values.tls.secret | default .Values.tls.issuer.name -}}
{{- end }}

{{/* The Secret of a component's certificate. */}}
{{- define "pentimento.tlsSecret" -}}
{{- .root.Values.tls.secret | default (printf "%s-%s-tls" (include "pentimento.fullname" .root) .name) -}}
{{- end }}

{{/* Whether the names in certificates decide who may call: empty if not. */}}
{{- define "pentimento.callerRules" -}}
{{- if and .Values.tls.mutual .Values.tls.callerRules }}true{{ end -}}
{{- end }}

{{/* The names of a component that no other namespace has, as a list. */}}
{{- define "pentimento.ownNames" -}}
{{- $name := printf "%s-%s" (include "pentimento.fullname" .root) .name -}}
{{- $host := printf "%s.%s.svc" $name .root.Release.Namespace -}}
- spiffe://{{ .root.Values.tls.trustDomain }}/ns/{{ .root.Release.Namespace }}/sa/{{ $name }}
- {{ $host }}
{{- if eq .kind "StatefulSet" }}
- "*.{{ $host }}"
{{- end }}
{{- end }}

{{- define "pentimento.image" -}}
{{- $image := .root.Values.image -}}
{{- $repository := printf "%s%s" $image.prefix .service -}}
{{- if and .values (ne .values.accelerator.kind "none") }}{{ $repository = printf "%s-cuda" $repository }}{{ end -}}
{{- if $image.registry }}{{ $repository = printf "%s/%s" $image.registry $repository }}{{ end -}}
{{- if hasKey $image.digests .service -}}
{{ $repository }}@{{ index $image.digests .service }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "pentimento.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "pentimento.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{/* Every cell that has requests, those of new ones first; none without cells. */}}
{{- define "pentimento.cells" -}}
{{- $names := .Values.cells.names -}}
{{- if $names }}{{ range .Values.cells.former }}{{ $names = concat $names . }}{{ end }}{{ end -}}
{{- $names | uniq | toYaml -}}
{{- end }}

{{/* The component of a cell's frontdoor: a release without cells has the cell `frontdoor`. */}}
{{- define "pentimento.frontdoor" -}}
{{- if has . (list "" "frontdoor") }}frontdoor{{ else }}frontdoor-{{ . }}{{ end -}}
{{- end }}

{{/* Every component of the release, as a list: name, service, section of its settings, kind of its object, values.
     With TLS each replica that others call by its own address has a name of its own, so that a certificate fits. */}}
{{- define "pentimento.components" -}}
{{- $own := ternary "StatefulSet" "Deployment" (ne (include "pentimento.secure" .) "") -}}
{{- $found := list
  (dict "key" "controller" "service" "controller" "kind" "Deployment")
  (dict "key" "embedder" "service" "embedder" "kind" $own)
  (dict "key" "embedder" "service" "embedder" "name" "image-embedder" "kind" $own "left" (not .Values.serving.imageEncoder))
  (dict "key" "gateway" "service" "vectordb-gateway" "kind" $own)
  (dict "key" "controlnet" "service" "controlnet-svc" "kind" "StatefulSet")
  (dict "key" "discriminator" "service" "discriminator" "kind" $own)
  (dict "key" "frontdoor" "service" "frontdoor" "kind" "Deployment" "left" .Values.cells.names)
  (dict "key" "edge" "service" "edge" "kind" "Deployment") -}}
{{- $all := list -}}
{{- range $cell := include "pentimento.cells" . | fromYamlArray }}
{{- $found = append $found (dict "key" "frontdoor" "service" "frontdoor" "name" (include "pentimento.frontdoor" $cell) "kind" "Deployment" "cell" $cell) }}
{{- end }}
{{- range $found }}
{{- $values := mustMergeOverwrite (deepCopy $.Values.defaults) (deepCopy (index $.Values .key)) -}}
{{- if not (or .left (eq (toString $values.enabled) "false")) }}
{{- $all = append $all (dict "name" (.name | default .service) "service" .service "kind" .kind "cell" (.cell | default "") "values" $values) -}}
{{- end }}
{{- end }}
{{- range $pool, $given := .Values.workers }}
{{- if kindIs "map" $given }}
{{- $values := mustMergeOverwrite (deepCopy $.Values.defaults) (deepCopy $.Values.workerDefaults) (deepCopy $given) -}}
{{- $name := printf "unet-worker-%s" $pool -}}
{{- $all = append $all (dict "name" $name "service" "unet-worker" "kind" "StatefulSet" "pool" $pool "values" $values) -}}
{{- end }}
{{- end }}
{{- toYaml $all -}}
{{- end }}
