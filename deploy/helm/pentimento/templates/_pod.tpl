{{/* The services of a set of features, by name. */}}
{{- define "pentimento.reads" -}}
models: [unet-worker, controlnet-svc, embedder, discriminator]
profiles: [unet-worker, vectordb-gateway, frontdoor]
tensors: [unet-worker, controlnet-svc]
compiled: [unet-worker, controlnet-svc]
cache: [unet-worker, controlnet-svc]
data: [unet-worker, vectordb-gateway, frontdoor, controller, edge]
{{- end }}

{{/* The files of Secrets that a service mounts: by name of the entry in `secrets`, the file's name. */}}
{{- define "pentimento.secretFiles" -}}
{{- $files := dict -}}
{{- if and .root.Values.auth.enabled (not (has .service (list "edge" "migrate"))) -}}
{{- $files = merge $files (dict "tokens" "tokens.toml" "serviceToken" "service_token") -}}
{{- if has .service (list "unet-worker" "vectordb-gateway") }}{{ $files = set $files "grantKey" "grant_key" }}{{ end -}}
{{- end -}}
{{- if eq .service "frontdoor" -}}
{{- range $entry, $file := dict "receiptKey" "receipt_key" "c2paCertificate" "c2pa_certificate" -}}
{{- if (index $.root.Values.secrets $entry).key }}{{ $files = set $files $entry $file }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if eq .root.Values.stores.kind "external" -}}
{{- if has .service (list "frontdoor" "edge") }}{{ $files = set $files "signingKey" "signing_key" }}{{ end -}}
{{- if and (eq .service "vectordb-gateway") .root.Values.stores.qdrant.key -}}
{{- $files = set $files "vectorsKey" "vectors_key" -}}
{{- end -}}
{{- if eq .root.Values.stores.s3.credentials "secret" -}}
{{- if eq .service "edge" }}{{ $files = set $files "s3ReaderCredentials" "s3_reader_credentials" }}{{ end -}}
{{- if has .service (list "unet-worker" "controlnet-svc" "vectordb-gateway" "frontdoor" "controller") -}}
{{- $files = set $files "s3Credentials" "s3_credentials" -}}
{{- end -}}
{{- end -}}
{{- $ledgers := has .service (list "vectordb-gateway" "frontdoor" "controller" "migrate") -}}
{{- if and $ledgers .root.Values.secrets.postgresqlCa.key -}}
{{- $files = set $files "postgresqlCa" "postgresql-ca.crt" -}}
{{- end -}}
{{- end -}}
{{- toYaml $files -}}
{{- end }}

{{- define "pentimento.secretVolume" -}}
{{- $secrets := .root.Values.secrets -}}
{{- $files := include "pentimento.secretFiles" . | fromYaml -}}
{{- if $files }}
- name: secrets
  projected:
    sources:
    {{- range $entry, $file := $files }}
    {{- $secret := index $secrets $entry }}
    - secret: {name: {{ $secret.name | default $secrets.name }}, items: [{key: {{ $secret.key }}, path: {{ $file }}}]}
    {{- end }}
{{- end }}
{{- end }}

{{/* A volume of files to read: `source` is models or profiles. */}}
{{- define "pentimento.readVolume" -}}
{{- $source := index .root.Values .source -}}
- name: {{ .source }}
{{- if eq $source.kind "claim" }}
  persistentVolumeClaim: {claimName: {{ $source.claim }}, readOnly: true}
{{- else if eq $source.kind "hostPath" }}
  hostPath: {path: {{ $source.path }}, type: Directory}
{{- else if eq $source.kind "image" }}
  image: {reference: {{ $source.image | quote }}, pullPolicy: {{ $source.pullPolicy }}}
{{- else }}
  emptyDir: {}
{{- end }}
{{- end }}

{{- define "pentimento.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "pentimento.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Readiness follows the health service; liveness only asks whether the process answers. Certificates keep the kubelet's
     own probes out, so that with TLS a program in the pod asks through a socket. */}}
{{- define "pentimento.probes" -}}
{{- $program := list "python" "-P" "/opt/pentimento/pentimento/rpc/probe.py" "unix:/tmp/pentimento.sock" -}}
{{- $live := dict "exec" (dict "command" (append $program "liveness")) -}}
{{- $ready := dict "exec" (dict "command" $program) -}}
{{- if not (include "pentimento.secure" .root) -}}
{{- if eq .service "edge" -}}
{{- $live = dict "httpGet" (dict "path" "/health" "port" "http") -}}
{{- $ready = dict "httpGet" (dict "path" "/ready" "port" "http") -}}
{{- else -}}
{{- $live = dict "grpc" (dict "port" 50051 "service" "liveness") -}}
{{- $ready = dict "grpc" (dict "port" 50051) -}}
{{- end -}}
{{- end -}}
{{- $loads := has .service (index (include "pentimento.reads" . | fromYaml) "models") -}}
startupProbe:
  {{- toYaml $live | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: {{ ternary 180 24 $loads }}
livenessProbe:
  {{- toYaml $live | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  {{- toYaml $ready | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{- define "pentimento.mounts" -}}
{{- $reads := include "pentimento.reads" . | fromYaml -}}
- {name: tmp, mountPath: /tmp}
{{- range $source := list "models" "profiles" }}
{{- if and (has $.service (index $reads $source)) (ne (index $.root.Values $source).kind "none") }}
{{- $given := index $.root.Values $source }}
{{- $below := ternary ($given.from | trimPrefix "/") "" (eq $given.kind "image") }}
- {name: {{ $source }}, mountPath: /{{ $source }}, readOnly: true{{ with $below }}, subPath: {{ . }}{{ end }}}
{{- end }}
{{- end }}
{{- if include "pentimento.secretFiles" . | fromYaml }}
- {name: secrets, mountPath: /run/secrets/pentimento, readOnly: true}
{{- end }}
{{- if include "pentimento.secure" .root }}
- {name: tls, mountPath: /run/secrets/tls, readOnly: true}
{{- end }}
{{- if and (has .service $reads.cache) .root.Values.registry.publicKeys }}
- {name: registry-keys, mountPath: /run/secrets/registry, readOnly: true}
{{- end }}
{{- if has .service $reads.tensors }}
- {name: tensors, mountPath: {{ ternary "/dev/shm" "/dev/shm/pentimento" (eq .root.Values.tensors.kind "emptyDir") }}}
{{- end }}
{{- if has .service $reads.cache }}
- {name: cache, mountPath: /var/cache/pentimento}
{{- end }}
{{- if and (has .service $reads.compiled) (ne .values.accelerator.kind "none") }}
- {name: compiled, mountPath: /var/cache/triton}
{{- end }}
{{- if and (has .service $reads.data) (eq .root.Values.stores.kind "embedded") }}
- {name: data, mountPath: /var/lib/pentimento{{ if eq .service "edge" }}, readOnly: true{{ end }}}
{{- end }}
{{- end }}

{{- define "pentimento.volumes" -}}
{{- $reads := include "pentimento.reads" . | fromYaml -}}
{{- $cache := .root.Values.componentCache -}}
{{- $tensors := .root.Values.tensors -}}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 64Mi}
{{- range $source := list "models" "profiles" }}
{{- if and (has $.service (index $reads $source)) (ne (index $.root.Values $source).kind "none") }}
{{ include "pentimento.readVolume" (dict "root" $.root "source" $source) }}
{{- end }}
{{- end }}
{{- include "pentimento.secretVolume" . }}
{{- if include "pentimento.secure" .root }}
- name: tls
{{- if include "pentimento.callerRules" .root }}
  projected:
    sources:
    - secret: {name: {{ include "pentimento.tlsSecret" . }}}
    - configMap: {name: {{ include "pentimento.fullname" .root }}-callers}
{{- else }}
  secret: {secretName: {{ include "pentimento.tlsSecret" . }}}
{{- end }}
{{- end }}
{{- if and (has .service $reads.cache) .root.Values.registry.publicKeys }}
- name: registry-keys
  configMap: {name: {{ .root.Values.registry.configMap }}}
{{- end }}
{{- if has .service $reads.tensors }}
- name: tensors
{{- if eq $tensors.kind "hostPath" }}
  hostPath: {path: {{ $tensors.path }}, type: Directory}
{{- else }}
  emptyDir: {medium: Memory, sizeLimit: {{ $tensors.size }}}
{{- end }}
{{- end }}
{{- $keeps := eq .service "unet-worker" }}
{{- if and (has .service $reads.cache) (not (and $keeps (eq $cache.kind "claim"))) }}
- name: cache
{{- if eq $cache.kind "hostPath" }}
  hostPath: {path: {{ $cache.path }}, type: Directory}
{{- else }}
  emptyDir: {sizeLimit: {{ $cache.size }}}
{{- end }}
{{- end }}
{{- if and (has .service $reads.compiled) (ne .values.accelerator.kind "none") }}
- name: compiled
  emptyDir: {medium: Memory, sizeLimit: 256Mi}
{{- end }}
{{- if and (has .service $reads.data) (eq .root.Values.stores.kind "embedded") }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .root.Values.stores.embedded.claim | default (printf "%s-data" (include "pentimento.fullname" .root)) }}
{{- end }}
{{- end }}

{{/* Init containers that copy the files of an image: they work on every cluster, for small models. */}}
{{- define "pentimento.copies" -}}
{{- $reads := include "pentimento.reads" . | fromYaml -}}
{{- range $source := list "models" "profiles" }}
{{- $given := index $.root.Values $source }}
{{- if and (has $.service (index $reads $source)) (eq $given.kind "copy") }}
- name: copy-{{ $source }}
  image: {{ $given.image | quote }}
  imagePullPolicy: {{ $given.pullPolicy }}
  command: [cp, -r, "{{ $given.from }}/.", /copied/]
  securityContext:
    {{- include "pentimento.containerSecurity" $ | nindent 4 }}
  resources:
    requests: {cpu: 100m, memory: 64Mi, ephemeral-storage: 128Mi}
    limits: {cpu: "1", memory: 256Mi, ephemeral-storage: 1Gi}
  volumeMounts:
  - {name: {{ $source }}, mountPath: /copied}
{{- end }}
{{- end }}
{{- end }}

{{- define "pentimento.resources" -}}
{{- $resources := deepCopy .values.resources -}}
{{- if eq .values.accelerator.kind "plugin" -}}
{{- range list "requests" "limits" -}}
{{- $resources = set $resources . (set (get $resources .) $.values.accelerator.resource 1) -}}
{{- end -}}
{{- else if eq .values.accelerator.kind "claim" -}}
{{- $resources = set $resources "claims" (list (dict "name" "accelerator")) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}

{{- define "pentimento.spread" -}}
{{- range .root.Values.topologySpread.keys }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: {{ $.root.Values.topologySpread.whenUnsatisfiable }}
  labelSelector:
    matchLabels:
      {{- include "pentimento.selector" $ | nindent 6 }}
{{- end }}
{{- end }}

{{- define "pentimento.priorityClass" -}}
{{- $class := ternary "device" "control" (has .service (list "unet-worker" "controlnet-svc" "embedder" "discriminator")) -}}
{{- if .root.Values.priorityClasses.create -}}
{{ include "pentimento.fullname" .root }}-{{ $class }}
{{- else -}}
{{ index .root.Values.priorityClasses $class }}
{{- end -}}
{{- end }}

{{/* The template of a component's pods. */}}
{{- define "pentimento.pod" -}}
metadata:
  labels:
    {{- include "pentimento.componentLabels" . | nindent 4 }}
  {{- with .values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "pentimento.serviceAccount" .root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add (int .root.Values.drainSeconds) 15 }}
  {{- with include "pentimento.priorityClass" . }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  securityContext:
    {{- include "pentimento.podSecurity" . | nindent 4 }}
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with .values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "pentimento.spread" . | trim }}
  topologySpreadConstraints:
    {{- . | nindent 4 }}
  {{- end }}
  {{- if eq .values.accelerator.kind "claim" }}
  resourceClaims:
    - {name: accelerator, resourceClaimTemplateName: {{ include "pentimento.fullname" .root }}-{{ .name }}}
  {{- end }}
  {{- with include "pentimento.copies" . | trim }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .service }}
      image: {{ include "pentimento.image" . | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      env:
        {{- include "pentimento.env" . | nindent 8 }}
      ports:
        {{- if eq .service "edge" }}
        - {name: http, containerPort: 50480}
        {{- else }}
        - {name: grpc, containerPort: 50051}
        {{- end }}
        {{- if .values.admin }}
        - {name: admin, containerPort: 50052}
        {{- end }}
        {{- if and (eq .service "controller") (include "pentimento.scaledByKeda" .root) }}
        - {name: scaler, containerPort: 50053}
        {{- end }}
        - {name: metrics, containerPort: 9100}
      {{- include "pentimento.probes" . | nindent 6 }}
      resources:
        {{- include "pentimento.resources" . | nindent 8 }}
      securityContext:
        {{- include "pentimento.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "pentimento.mounts" . | nindent 8 }}
  volumes:
    {{- include "pentimento.volumes" . | nindent 4 }}
{{- end }}
