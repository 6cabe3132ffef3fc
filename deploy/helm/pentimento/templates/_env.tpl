{{/* The settings of every service, as variables: what docker-compose.yml and deploy/services.yml give. */}}

{{- define "pentimento.env.common" -}}
PENTIMENTO_COMMON_INSTANCE_ID: "{hostname}"
PENTIMENTO_COMMON_DRAIN_TIMEOUT_S: {{ include "pentimento.text" .root.Values.drainSeconds | quote }}
PENTIMENTO_COMMON_LOG_LEVEL: {{ .root.Values.logLevel }}
{{- with .root.Values.tracing.endpoint }}
OTEL_EXPORTER_OTLP_ENDPOINT: {{ . | quote }}
OTEL_TRACES_SAMPLER: parentbased_traceidratio
OTEL_TRACES_SAMPLER_ARG: {{ include "pentimento.text" $.root.Values.tracing.share | quote }}
{{- end }}
{{- if and .root.Values.auth.enabled (ne .service "edge") }}
PENTIMENTO_COMMON_TOKEN_FILE: {{ include "pentimento.secretFile" "tokens.toml" }}
PENTIMENTO_COMMON_SERVICE_TOKEN_FILE: {{ include "pentimento.secretFile" "service_token" }}
{{- end }}
{{- if include "pentimento.secure" .root }}
PENTIMENTO_COMMON_TLS_DIR: /run/secrets/tls
{{- if and .root.Values.tls.mutual (not (has .service (list "frontdoor" "edge"))) }}
PENTIMENTO_COMMON_MUTUAL_TLS: "true"
{{- if include "pentimento.callerRules" .root }}
PENTIMENTO_COMMON_TLS_CALLERS_FILE: /run/secrets/tls/callers.toml
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Each replica's address for the others. */}}
{{- define "pentimento.env.advertised" -}}
{{- $section := .service | upper | replace "-" "_" -}}
{{- $address := "$(POD_IP):50051" -}}
{{- if eq .kind "StatefulSet" -}}
{{- $service := printf "%s-%s" (include "pentimento.fullname" .root) .name -}}
{{- $address = printf "$(POD_NAME).%s.%s.svc:50051" $service .root.Release.Namespace -}}
{{- else if include "pentimento.secure" .root -}}
{{- $address = include "pentimento.address" (dict "root" .root "service" (.name | default .service)) -}}
{{- end -}}
PENTIMENTO_{{ $section }}_ADVERTISE_ADDRESS: {{ $address }}
PENTIMENTO_{{ $section }}_CONTROLLER_ADDRESS: {{ include "pentimento.address" (dict "root" .root "service" "controller") }}
{{- end }}

{{- define "pentimento.env.device" -}}
{{- $section := .service | upper | replace "-" "_" -}}
PENTIMENTO_{{ $section }}_DEVICE: {{ ternary "cpu" "cuda" (eq .values.accelerator.kind "none") }}
{{- end }}

{{- define "pentimento.env.s3" -}}
{{- if and (eq .root.Values.stores.kind "external") (eq .root.Values.stores.s3.credentials "secret") -}}
AWS_SHARED_CREDENTIALS_FILE: {{ include "pentimento.secretFile" .file }}
{{- end }}
{{- end }}

{{- define "pentimento.env.controller" -}}
{{- $serving := .root.Values.serving -}}
PENTIMENTO_CONTROLLER_ALLOCATOR: {{ $serving.allocator }}
PENTIMENTO_CONTROLLER_MODM_MODE: {{ $serving.modmMode }}
PENTIMENTO_CONTROLLER_PROFILE_RULE: {{ $serving.profileRule }}
PENTIMENTO_CONTROLLER_HEAVY: {{ $serving.heavy }}
PENTIMENTO_CONTROLLER_LIGHT: {{ $serving.light | quote }}
PENTIMENTO_CONTROLLER_SMALL: {{ include "pentimento.text" $serving.small | quote }}
PENTIMENTO_CONTROLLER_SLO_S: {{ include "pentimento.text" $serving.sloSeconds | quote }}
PENTIMENTO_CONTROLLER_COMPONENT_DISK_MIB: {{ include "pentimento.text" .root.Values.componentCache.diskMib | quote }}
PENTIMENTO_CONTROLLER_STANDBY: "true"
{{- if include "pentimento.scaledByKeda" .root }}
PENTIMENTO_CONTROLLER_SCALER_LISTEN: 0.0.0.0:50053
PENTIMENTO_CONTROLLER_SCALED_MODELS: {{ include "pentimento.scaledModels" .root | quote }}
{{- end }}
PENTIMENTO_CONTROLLER_LEDGER_URL: {{ include "pentimento.ledger" . | quote }}
PENTIMENTO_CONTROLLER_OBJECTS_URL: {{ include "pentimento.objects" . | quote }}
{{ include "pentimento.env.s3" (merge (dict "file" "s3_credentials") .) }}
{{- end }}

{{- define "pentimento.env.embedder" -}}
{{ include "pentimento.env.advertised" . }}
{{ include "pentimento.env.device" . }}
PENTIMENTO_EMBEDDER_SKIP_MISSING: "true"
{{- if eq .name "image-embedder" }}
PENTIMENTO_EMBEDDER_SPACE: image
PENTIMENTO_EMBEDDER_ENCODER: /models/{{ .root.Values.serving.imageEncoder }}
{{- else }}
PENTIMENTO_EMBEDDER_ENCODER: /models/{{ .root.Values.serving.encoder }}
{{- end }}
{{- end }}

{{- define "pentimento.env.vectordb-gateway" -}}
{{- $cache := .root.Values.cache -}}
{{ include "pentimento.env.advertised" . }}
PENTIMENTO_VECTORDB_GATEWAY_PROFILES: /usr/share/pentimento/profiles,/profiles
PENTIMENTO_VECTORDB_GATEWAY_PROFILE_RULE: {{ .root.Values.serving.profileRule }}
PENTIMENTO_VECTORDB_GATEWAY_EARNED_REUSE: {{ $cache.earnedReuse | quote }}
PENTIMENTO_VECTORDB_GATEWAY_FOLLOW_PLAN: "true"
PENTIMENTO_VECTORDB_GATEWAY_EVICTION: {{ $cache.eviction | quote }}
PENTIMENTO_VECTORDB_GATEWAY_CACHE_BIAS: {{ include "pentimento.text" $cache.bias | quote }}
PENTIMENTO_VECTORDB_GATEWAY_SCRATCH_SHARE: {{ include "pentimento.text" $cache.scratchShare | quote }}
PENTIMENTO_VECTORDB_GATEWAY_RENOISED_SHARE: {{ include "pentimento.text" $cache.renoisedShare | quote }}
PENTIMENTO_VECTORDB_GATEWAY_MATCH_PREDICTOR: {{ $cache.matchPredictor | quote }}
PENTIMENTO_VECTORDB_GATEWAY_INDEX_URL: {{ include "pentimento.index" .root | quote }}
PENTIMENTO_VECTORDB_GATEWAY_OBJECTS_URL: {{ include "pentimento.objects" . | quote }}
PENTIMENTO_VECTORDB_GATEWAY_LEDGER_URL: {{ include "pentimento.ledger" . | quote }}
{{- if .root.Values.auth.enabled }}
PENTIMENTO_VECTORDB_GATEWAY_GRANT_KEY_FILE: {{ include "pentimento.secretFile" "grant_key" }}
{{- end }}
{{ include "pentimento.env.s3" (merge (dict "file" "s3_credentials") .) }}
{{- end }}

{{- define "pentimento.env.unet-worker" -}}
{{- $model := include "pentimento.poolModel" . -}}
{{- $others := .values.otherModels -}}
{{- if kindIs "invalid" $others }}{{ $others = without (include "pentimento.models" .root | fromYamlArray) $model }}{{ end -}}
{{- $paths := list -}}
{{- range $others }}{{ $paths = append $paths (printf "/models/%s" .) }}{{ end -}}
{{ include "pentimento.env.advertised" . }}
{{ include "pentimento.env.device" . }}
PENTIMENTO_UNET_WORKER_MODEL: /models/{{ $model }}
PENTIMENTO_UNET_WORKER_OTHER_MODELS: {{ join "," (concat $paths .root.Values.serving.modelSources) | quote }}
PENTIMENTO_UNET_WORKER_SKIP_MISSING: {{ .values.skipMissing | quote }}
PENTIMENTO_UNET_WORKER_PROFILES: /usr/share/pentimento/profiles,/profiles
PENTIMENTO_UNET_WORKER_WEIGHTS: {{ .root.Values.serving.weights }}
PENTIMENTO_UNET_WORKER_REGISTRY_PUBLIC_KEYS: {{ include "pentimento.registryKeys" .root | quote }}
PENTIMENTO_UNET_WORKER_ADAPTERS_DIR: /models
PENTIMENTO_UNET_WORKER_COMPONENT_CACHE_DIR: /var/cache/pentimento/components
PENTIMENTO_UNET_WORKER_COMPONENT_DISK_MIB: {{ include "pentimento.text" .root.Values.componentCache.diskMib | quote }}
PENTIMENTO_UNET_WORKER_OBJECTS_URL: {{ include "pentimento.objects" . | quote }}
PENTIMENTO_UNET_WORKER_CLAIMS_PER_DEVICE: {{ include "pentimento.text" .values.accelerator.share | quote }}
{{- if .root.Values.auth.enabled }}
PENTIMENTO_UNET_WORKER_GRANT_KEY_FILE: {{ include "pentimento.secretFile" "grant_key" }}
{{- end }}
{{ include "pentimento.env.s3" (merge (dict "file" "s3_credentials") .) }}
{{- end }}

{{- define "pentimento.env.controlnet-svc" -}}
{{ include "pentimento.env.advertised" . }}
{{ include "pentimento.env.device" . }}
PENTIMENTO_CONTROLNET_SVC_SKIP_MISSING: "true"
PENTIMENTO_CONTROLNET_SVC_CONTROLNETS: /models/registry.json
PENTIMENTO_CONTROLNET_SVC_REGISTRY_PUBLIC_KEYS: {{ include "pentimento.registryKeys" .root | quote }}
PENTIMENTO_CONTROLNET_SVC_COMPONENT_CACHE_DIR: /var/cache/pentimento/components
PENTIMENTO_CONTROLNET_SVC_COMPONENT_DISK_MIB: {{ include "pentimento.text" .root.Values.componentCache.diskMib | quote }}
PENTIMENTO_CONTROLNET_SVC_CLAIMS_PER_DEVICE: {{ include "pentimento.text" .values.accelerator.share | quote }}
{{ include "pentimento.env.s3" (merge (dict "file" "s3_credentials") .) }}
{{- end }}

{{- define "pentimento.env.discriminator" -}}
{{- $serving := .root.Values.serving -}}
{{ include "pentimento.env.advertised" . }}
{{ include "pentimento.env.device" . }}
PENTIMENTO_DISCRIMINATOR_SKIP_MISSING: "true"
PENTIMENTO_DISCRIMINATOR_CASCADE: {{ include "pentimento.text" $serving.cascade | quote }}
PENTIMENTO_DISCRIMINATOR_ENCODER: {{ $serving.imageEncoder | default $serving.encoder }}
PENTIMENTO_DISCRIMINATOR_CASCADES: {{ include "pentimento.text" (prepend $serving.discriminators "/models/registry.json") | quote }}
PENTIMENTO_DISCRIMINATOR_CLASSIFIERS: prompt=/models/{{ $serving.promptClassifier }},image=/models/{{ $serving.imageClassifier }}
PENTIMENTO_DISCRIMINATOR_UNSAFE_LABELS: {{ include "pentimento.text" $serving.unsafeLabels | quote }}
{{- end }}

{{- define "pentimento.env.frontdoor" -}}
{{- $serving := .root.Values.serving -}}
{{ include "pentimento.env.advertised" . }}
{{- if and .root.Values.embedder.enabled .root.Values.gateway.enabled }}
PENTIMENTO_FRONTDOOR_EMBEDDER_ADDRESS: {{ include "pentimento.address" (dict "root" .root "service" "embedder") }}{{ if $serving.imageEncoder }},{{ include "pentimento.address" (dict "root" .root "service" "image-embedder") }}{{ end }}
PENTIMENTO_FRONTDOOR_GATEWAY_ADDRESS: {{ include "pentimento.address" (dict "root" .root "service" "vectordb-gateway") }}
{{- end }}
PENTIMENTO_FRONTDOOR_CASCADE: {{ include "pentimento.text" ($serving.cascade | default (list $serving.heavy)) | quote }}
PENTIMENTO_FRONTDOOR_CONFIDENCE_THRESHOLD: {{ include "pentimento.text" $serving.confidenceThreshold | quote }}
PENTIMENTO_FRONTDOOR_PROFILE_RULE: {{ $serving.profileRule }}
PENTIMENTO_FRONTDOOR_THINNING: {{ $serving.thinning | quote }}
PENTIMENTO_FRONTDOOR_FEATURE_REUSE: {{ $serving.featureReuse }}
PENTIMENTO_FRONTDOOR_HANDOVER: {{ $serving.handover | quote }}
PENTIMENTO_FRONTDOOR_CONTROLNET_PIPELINING: {{ $serving.controlnetPipelining | quote }}
PENTIMENTO_FRONTDOOR_SAFETY_CHECKS: {{ include "pentimento.text" $serving.safetyChecks | quote }}
PENTIMENTO_FRONTDOOR_DISCRIMINATOR_ADDRESSES: {{ include "pentimento.address" (dict "root" .root "service" "discriminator") }}
PENTIMENTO_FRONTDOOR_PROFILES: /usr/share/pentimento/profiles,/profiles
PENTIMENTO_FRONTDOOR_STANDBY: "true"
{{- if .values.admin }}
PENTIMENTO_FRONTDOOR_ADMIN_LISTEN: 0.0.0.0:50052
{{- end }}
{{- if .cell }}
PENTIMENTO_FRONTDOOR_FRONTDOOR_ID: {{ .cell | quote }}
PENTIMENTO_FRONTDOOR_CELLS: {{ include "pentimento.cellAddresses" .root | quote }}
PENTIMENTO_FRONTDOOR_CELL_LISTS: {{ include "pentimento.cellLists" .root | quote }}
PENTIMENTO_FRONTDOOR_TENANTS_URL: {{ include "pentimento.ledger" (dict "root" .root "service" "frontdoor") | quote }}
{{- end }}
PENTIMENTO_FRONTDOOR_LEDGER_URL: {{ include "pentimento.ledger" . | quote }}
PENTIMENTO_FRONTDOOR_OBJECTS_URL: {{ include "pentimento.objects" . | quote }}
PENTIMENTO_FRONTDOOR_SIGNING_KEY_FILE: {{ include "pentimento.signingKey" .root }}
{{- if .root.Values.secrets.receiptKey.key }}
PENTIMENTO_FRONTDOOR_RECEIPT_KEY_FILE: {{ include "pentimento.secretFile" "receipt_key" }}
{{- end }}
{{- if .root.Values.secrets.c2paCertificate.key }}
PENTIMENTO_FRONTDOOR_C2PA_CERTIFICATE_FILE: {{ include "pentimento.secretFile" "c2pa_certificate" }}
{{- end }}
{{ include "pentimento.env.s3" (merge (dict "file" "s3_credentials") .) }}
{{- end }}

{{- define "pentimento.env.edge" -}}
{{- $serving := .root.Values.serving -}}
PENTIMENTO_EDGE_LISTEN: unix:/tmp/pentimento.sock
PENTIMENTO_EDGE_HTTP_LISTEN: 0.0.0.0:50480
PENTIMENTO_EDGE_ALLOWED_HOSTS: {{ include "pentimento.text" .values.hosts | quote }}
PENTIMENTO_EDGE_MODEL_ALIASES: {{ include "pentimento.text" $serving.modelAliases | quote }}
{{- $cells := include "pentimento.cells" .root | fromYamlArray }}
{{- $files := list }}
{{- range $cells | default (list "") }}{{ $files = append $files (include "pentimento.objects" (dict "root" $.root "reader" true "cell" .)) }}{{ end }}
{{- if $cells }}
PENTIMENTO_EDGE_CELLS: {{ include "pentimento.cellAddresses" .root | quote }}
PENTIMENTO_EDGE_CELL_LISTS: {{ include "pentimento.cellLists" .root | quote }}
{{- else }}
PENTIMENTO_EDGE_FRONTDOOR_ADDRESS: {{ include "pentimento.address" (dict "root" .root "service" "frontdoor") }}
{{- end }}
PENTIMENTO_EDGE_CONTROLLER_ADDRESS: {{ include "pentimento.address" (dict "root" .root "service" "controller") }}
{{- if .root.Values.gateway.enabled }}
PENTIMENTO_EDGE_GATEWAY_ADDRESS: {{ include "pentimento.address" (dict "root" .root "service" "vectordb-gateway") }}
{{- end }}
PENTIMENTO_EDGE_FILES_URL: {{ join "," $files | quote }}
PENTIMENTO_EDGE_SIGNING_KEY_FILE: {{ include "pentimento.signingKey" .root }}
{{ include "pentimento.env.s3" (merge (dict "file" "s3_reader_credentials") .) }}
{{- end }}

{{/* The file of public keys, without which entries need no signature. */}}
{{- define "pentimento.registryKeys" -}}
{{- with .Values.registry.publicKeys }}/run/secrets/registry/{{ . }}{{ end -}}
{{- end }}

{{/* The embedded form's frontdoor makes the key on the volume. */}}
{{- define "pentimento.signingKey" -}}
{{- if eq .Values.stores.kind "embedded" -}}
/var/lib/pentimento/signing-key
{{- else -}}
{{ include "pentimento.secretFile" "signing_key" }}
{{- end -}}
{{- end }}

{{/* The list of a container's variables: the pod's own names first, since others refer to them. */}}
{{- define "pentimento.env" -}}
{{- $section := .service | upper | replace "-" "_" -}}
{{- $all := include "pentimento.env.common" . | fromYaml -}}
{{- $all = merge (include (printf "pentimento.env.%s" .service) . | fromYaml) $all -}}
{{- range $name, $value := .values.settings }}
{{- $all = set $all (printf "PENTIMENTO_%s_%s" $section (upper $name)) (include "pentimento.text" $value) -}}
{{- end }}
{{- $compiles := has .service (index (include "pentimento.reads" . | fromYaml) "compiled") -}}
{{- if and $compiles (ne .values.accelerator.kind "none") }}{{ $all = set $all "TRITON_CACHE_DIR" "/var/cache/triton" }}{{ end -}}
{{- $all = merge $all .root.Values.env -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- range $name := keys $all | sortAlpha }}
- name: {{ $name }}
  value: {{ get $all $name | toString | quote }}
{{- end }}
{{- if and (eq .root.Values.stores.kind "external") (has .service (list "frontdoor" "vectordb-gateway" "controller")) }}
{{ include "pentimento.databasePassword" .root }}
{{- end }}
{{- end }}

{{- define "pentimento.databasePassword" -}}
{{- $secret := .Values.secrets.postgresqlPassword -}}
- name: PGPASSWORD
  valueFrom: {secretKeyRef: {name: {{ $secret.name | default .Values.secrets.name }}, key: {{ $secret.key }}}}
{{- end }}
