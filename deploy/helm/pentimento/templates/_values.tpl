{{/* A value as an environment variable has it: lists with commas, whole numbers without an exponent. */}}
{{- define "pentimento.text" -}}
{{- if kindIs "slice" . -}}
{{- $parts := list -}}
{{- range . }}{{ $parts = append $parts (include "pentimento.text" .) }}{{ end -}}
{{- join "," $parts -}}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else if kindIs "invalid" . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end }}

{{- define "pentimento.secretFile" -}}/run/secrets/pentimento/{{ . }}{{- end }}

{{/* HOST:PORT of a component's Service. */}}
{{- define "pentimento.address" -}}
{{- printf "%s-%s:50051" (include "pentimento.fullname" .root) .service -}}
{{- end }}

{{/* The ledger of a service, and of a cell its own journal; the password comes from PGPASSWORD. */}}
{{- define "pentimento.ledger" -}}
{{- $cell := .cell | default "frontdoor" -}}
{{- $stores := .root.Values.stores -}}
{{- if eq $stores.kind "embedded" -}}
sqlite:////var/lib/pentimento/ledger/{{ .service }}.sqlite
{{- else -}}
{{- $database := $stores.postgresql -}}
{{- $parameters := list -}}
{{- range $database.hosts }}{{ $parameters = append $parameters (printf "host=%s" .) }}{{ end -}}
{{- if .root.Values.secrets.postgresqlCa.key -}}
{{- $parameters = append $parameters (printf "sslrootcert=%s" (include "pentimento.secretFile" "postgresql-ca.crt")) -}}
{{- end -}}
{{- if $database.parameters }}{{ $parameters = append $parameters $database.parameters }}{{ end -}}
{{- $name := ternary $database.database (printf "%s_%s" $database.database (replace "-" "_" $cell)) (eq $cell "frontdoor") -}}
postgresql+psycopg://{{ $database.user }}@/{{ get .root.Values.cells.databases (.cell | default "") | default $name }}?{{ join "&" $parameters }}
{{- end -}}
{{- end }}

{{- define "pentimento.index" -}}
{{- $stores := .Values.stores -}}
{{- if eq $stores.kind "embedded" -}}
edge:///var/lib/pentimento/index
{{- else -}}
{{- $parameters := list (printf "collection=%s" $stores.qdrant.collection) -}}
{{- if $stores.qdrant.tls }}{{ $parameters = append $parameters "tls=true" }}{{ end -}}
{{- if $stores.qdrant.key -}}
{{- $parameters = append $parameters (printf "api_key_file=%s" (include "pentimento.secretFile" "vectors_key")) -}}
{{- end -}}
{{- if $stores.qdrant.parameters }}{{ $parameters = append $parameters $stores.qdrant.parameters }}{{ end -}}
qdrant://{{ $stores.qdrant.address }}?{{ join "&" $parameters }}
{{- end -}}
{{- end }}

{{/* The setting `cells`, and `cell_lists`. */}}
{{- define "pentimento.cellAddresses" -}}
{{- $all := list -}}
{{- range include "pentimento.cells" . | fromYamlArray -}}
{{- $service := include "pentimento.address" (dict "root" $ "service" (include "pentimento.frontdoor" .)) -}}
{{- $all = append $all (printf "%s=%s" . (get $.Values.cells.addresses . | default $service)) -}}
{{- end -}}
{{- join "," $all -}}
{{- end }}

{{- define "pentimento.cellLists" -}}
{{- $all := list -}}
{{- range prepend .Values.cells.former .Values.cells.names }}{{ $all = append $all (join "+" .) }}{{ end -}}
{{- join "," $all -}}
{{- end }}

{{/* The object store, of a cell its own; a reader's address makes no bucket and signs none. */}}
{{- define "pentimento.objects" -}}
{{- $stores := .root.Values.stores -}}
{{- if eq $stores.kind "embedded" -}}
file:///var/lib/pentimento/objects
{{- else -}}
{{- $parameters := list (printf "region=%s" $stores.s3.region) -}}
{{- if $stores.s3.endpoint }}{{ $parameters = append $parameters (printf "endpoint=%s" $stores.s3.endpoint) }}{{ end -}}
{{- if not .reader -}}
{{- if $stores.s3.createBucket }}{{ $parameters = append $parameters "create_bucket=true" }}{{ end -}}
{{- $parameters = append $parameters (printf "addresses=%s" $stores.s3.addresses) -}}
{{- end -}}
{{- $cell := ternary "" (.cell | default "") (eq (.cell | default "") "frontdoor") -}}
{{- $prefix := join "-" (compact (list $stores.s3.prefix $cell)) -}}
s3://{{ $stores.s3.bucket }}{{ with $prefix }}/{{ . }}{{ end }}?{{ join "&" $parameters }}
{{- end -}}
{{- end }}

{{/* Every model of `serving`, heavy first, each once. */}}
{{- define "pentimento.models" -}}
{{- $serving := .Values.serving -}}
{{- concat (list $serving.heavy) (compact (list $serving.light)) $serving.small | uniq | toYaml -}}
{{- end }}

{{/* The model of a pool. */}}
{{- define "pentimento.poolModel" -}}
{{- .values.model | default (ternary .root.Values.serving.light .root.Values.serving.heavy (eq .pool "light")) -}}
{{- end }}

{{/* The components that KEDA scales, by name; empty if there is none. */}}
{{- define "pentimento.scaledByKeda" -}}
{{- range include "pentimento.components" . | fromYamlArray }}
{{- if eq .values.autoscaling.kind "keda" }}{{ .name }} {{ end }}
{{- end }}
{{- end }}

{{/* Models of pools that KEDA may scale to zero: requests for them wait. */}}
{{- define "pentimento.scaledModels" -}}
{{- $models := list -}}
{{- range include "pentimento.components" . | fromYamlArray }}
{{- if and (eq .service "unet-worker") (eq .values.autoscaling.kind "keda") (eq (int .values.autoscaling.minReplicas) 0) }}
{{- $models = append $models (include "pentimento.poolModel" (dict "root" $ "pool" .pool "values" .values)) }}
{{- end }}
{{- end }}
{{- join "," (uniq $models) -}}
{{- end }}

{{/* What no schema can say; every message names a value. */}}
{{- define "pentimento.check" -}}
{{- $stores := .Values.stores -}}
{{- if eq $stores.kind "external" }}
{{- $cells := .Values.cells }}
{{- if and (not $cells.names) (or $cells.former $cells.databases $cells.addresses) }}{{ fail "cells.names: cells.former, cells.databases and cells.addresses need it" }}{{ end }}
{{- $known := include "pentimento.cells" . | fromYamlArray }}
{{- range $field := list "databases" "addresses" }}
{{- range $cell := keys (index $cells $field) }}
{{- if not (has $cell $known) }}{{ fail (printf "cells.%s: no cell is named %s" $field $cell) }}{{ end }}
{{- end }}
{{- end }}
{{- if and .Values.grpcRoute.enabled $cells.names (ne (len $known) (len $cells.addresses)) }}
{{- fail "grpcRoute.enabled: clients are led to other cells, whose addresses outside the cluster cells.addresses must name" }}
{{- end }}
{{- if not $stores.postgresql.hosts }}{{ fail "stores.postgresql.hosts: name a server, or set stores.kind to embedded" }}{{ end }}
{{- if not $stores.s3.bucket }}{{ fail "stores.s3.bucket: name a bucket, or set stores.kind to embedded" }}{{ end }}
{{- if and .Values.gateway.enabled (not $stores.qdrant.address) }}
{{- fail "stores.qdrant.address: name a server, or set gateway.enabled to false" }}
{{- end }}
{{- else }}
{{- if .Values.cells.names }}{{ fail "cells.names: one process opens the embedded stores" }}{{ end }}
{{- range list "frontdoor" "controller" "gateway" }}
{{- $values := mustMergeOverwrite (deepCopy $.Values.defaults) (deepCopy (index $.Values .)) }}
{{- if or (gt (int $values.replicas) 1) (ne $values.autoscaling.kind "none") }}
{{- fail (printf "%s.replicas, %s.autoscaling: one process opens the embedded stores" . .) }}
{{- end }}
{{- end }}
{{- end }}
{{- range list "frontdoor" "controller" }}
{{- $values := mustMergeOverwrite (deepCopy $.Values.defaults) (deepCopy (index $.Values .)) }}
{{- if ne $values.autoscaling.kind "none" }}
{{- fail (printf "%s.autoscaling.kind: one replica is active, the others are standbys; set %s.replicas" . .) }}
{{- end }}
{{- end }}
{{- range include "pentimento.components" . | fromYamlArray }}
{{- $scaling := .values.autoscaling }}
{{- $toZero := and (eq .service "unet-worker") (eq $scaling.kind "keda") }}
{{- if and (ne $scaling.kind "none") (eq (int $scaling.minReplicas) 0) (not $toZero) }}
{{- fail (printf "autoscaling.minReplicas of %s: only workers that KEDA scales may have 0" .name) }}
{{- end }}
{{- if lt (int $scaling.maxReplicas) (int $scaling.minReplicas) }}
{{- fail (printf "autoscaling.maxReplicas of %s: must be at least minReplicas" .name) }}
{{- end }}
{{- end }}
{{- if and .Values.tls.secret .Values.tls.issuer.name }}
{{- fail "tls.issuer.name: certificates come from tls.secret or from an issuer, not from both" }}
{{- end }}
{{- if and .Values.tls.mutual (not (include "pentimento.secure" .)) }}
{{- fail "tls.mutual: needs tls.secret or tls.issuer.name" }}
{{- end }}
{{- range $name := list "models" "profiles" }}
{{- $source := index $.Values $name }}
{{- $field := get (dict "claim" "claim" "hostPath" "path" "image" "image" "copy" "image") $source.kind }}
{{- if and $field (not (get $source $field)) }}
{{- fail (printf "%s.%s: must be given where %s.kind is %s" $name $field $name $source.kind) }}
{{- end }}
{{- end }}
{{- range $name := list "componentCache" "tensors" }}
{{- $place := index $.Values $name }}
{{- if and (eq $place.kind "hostPath") (not $place.path) }}
{{- fail (printf "%s.path: must be given where %s.kind is hostPath" $name $name) }}
{{- end }}
{{- end }}
{{- $served := list }}
{{- $pools := 0 }}
{{- range $pool, $given := .Values.workers }}
{{- if kindIs "map" $given }}
{{- $pools = add $pools 1 }}
{{- $values := mustMergeOverwrite (deepCopy $.Values.workerDefaults) (deepCopy $given) }}
{{- $served = append $served (include "pentimento.poolModel" (dict "root" $ "pool" $pool "values" $values)) }}
{{- if kindIs "invalid" $values.otherModels }}{{ $served = concat $served (include "pentimento.models" $ | fromYamlArray) }}
{{- else }}{{ $served = concat $served $values.otherModels }}{{ end }}
{{- end }}
{{- end }}
{{- if eq (int $pools) 0 }}{{ fail "workers: must have a pool" }}{{ end }}
{{- range .Values.serving.cascade }}
{{- if not (has . $served) }}{{ fail (printf "serving.cascade: no pool of workers has the model %s" .) }}{{ end }}
{{- end }}
{{- if and (gt (len .Values.serving.cascade) 1) (not .Values.discriminator.enabled) }}
{{- fail "discriminator.enabled: a cascade (serving.cascade) needs a discriminator" }}
{{- end }}
{{- if and .Values.serving.safetyChecks (not .Values.discriminator.enabled) }}
{{- fail "discriminator.enabled: serving.safetyChecks need the discriminator, whose process runs the classifiers" }}
{{- end }}
{{- if and .Values.frontdoor.admin (not .Values.auth.enabled) }}
{{- fail "frontdoor.admin: without tokens (auth.enabled) every caller would be an administrator" }}
{{- end }}
{{- if and .Values.grpcRoute.enabled (not .Values.grpcRoute.parentRefs) }}
{{- fail "grpcRoute.parentRefs: name a Gateway" }}
{{- end }}
{{- if and .Values.ingress.enabled (or (not .Values.ingress.hosts) (not .Values.edge.enabled)) }}
{{- fail "ingress.hosts: name a host, and leave edge.enabled true" }}
{{- end }}
{{- end }}
