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
{{- $own := dict "host" .Values.host "port" 8000 }}
{{- with .Values.adminPort }}{{ $_ := set $own "admin_port" (int .) }}{{ end }}
{{- if .Values.keys.fileSecret }}{{ $_ := set $own "api_keys_file" "/etc/bert-keys/keys.yaml" }}{{ end }}
{{- mergeOverwrite (deepCopy .Values.settings) $own | toYaml }}
{{- end }}

{{- define "bert.metrics" -}}
{{ ternary "admin" "http" (not (empty .Values.adminPort)) }}
{{- end }}
