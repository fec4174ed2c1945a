{{- define "bert.name" -}}
{{ contains "bert-serve" .Release.Name | ternary .Release.Name (printf "%s-bert-serve" .Release.Name) | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "bert.selector" -}}
{app.kubernetes.io/name: bert-serve, app.kubernetes.io/instance: {{ .Release.Name | quote }}}
{{- end }}

{{- /* serve.yaml. In draft 7 a schema says in few words what is wanted, and in none what is not. */}}
{{- define "bert.settings" -}}
{{- range list "host" "port" "uds" "admin_port" "api_keys_file" "api_key" "admin_api_key" }}
{{- if hasKey $.Values.settings . }}
{{- fail (printf "settings.%s: not here; see the values host, adminPort and keys" .) }}
{{- end }}
{{- end }}
{{- $bundles := toString .Values.settings.bundles }}
{{- if contains "://" $bundles }}
{{- if not .Values.settings.model_cache }}
{{- fail "settings.bundles has a URL and needs settings.model_cache: a folder in /tmp, as no other can be written" }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.egress) }}
{{- fail "settings.bundles has a URL and needs networkPolicy.egress: pods would not reach it" }}
{{- end }}
{{- end }}
{{- if and .Values.bundlesClaim (not (contains "/bundles" $bundles)) }}
{{- fail (printf "bundlesClaim is at /bundles, which settings.bundles (%s) does not name" $bundles) }}
{{- end }}
{{- $own := dict "host" .Values.host "port" 8000 }}
{{- with .Values.adminPort }}{{ $_ := set $own "admin_port" (int .) }}{{ end }}
{{- if .Values.keys.fileSecret }}{{ $_ := set $own "api_keys_file" "/etc/bert-keys/keys.yaml" }}{{ end }}
{{- mergeOverwrite (deepCopy .Values.settings) $own | toYaml }}
{{- end }}

{{- define "bert.metrics" -}}
{{ ternary "admin" "http" (not (empty .Values.adminPort)) }}
{{- end }}

{{- define "bert.mebibytes" -}}
{{ mul (regexFind "[0-9]+" .) (hasSuffix "Gi" . | ternary 1024 1) }}
{{- end }}
