{{/* Names carry the release, so that several releases stand beside each other. */}}
{{- define "adit-agent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 52 characters: names of Pods and of what belongs to the release add to it. */}}
{{- define "adit-agent.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "adit-agent.selectorLabels" -}}
app.kubernetes.io/name: {{ include "adit-agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "adit-agent.podLabels" -}}
{{ include "adit-agent.selectorLabels" . }}
app.kubernetes.io/part-of: adit
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "adit-agent.labels" -}}
{{ include "adit-agent.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: adit
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "adit-agent.image" -}}
{{- with .Values.image -}}
{{- if .registry }}{{ .registry }}/{{ end }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ if .digest }}@{{ .digest }}{{ end }}
{{- end }}
{{- end }}

{{/* Cluster roles of releases of the same name in other namespaces are others. */}}
{{- define "adit-agent.clusterName" -}}
{{- printf "%s-%s" (.Release.Namespace | trunc 60 | trimSuffix "-") (include "adit-agent.fullname" .) }}
{{- end }}

{{- define "adit-agent.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "adit-agent.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* The Secret's name and key, from an object or from a name alone. */}}
{{- define "adit-agent.tokenSecret" -}}
{{- $s := .Values.agent.inviteTokenSecret | default dict }}
{{- if kindIs "string" $s }}{{ $s = dict "name" $s }}{{ end }}
{{- if not $s.name }}
{{- fail (printf "agent.inviteTokenSecret.name is empty: the agent needs an invite token. Create a namespace and the Secret, then name it:\n  kubectl create namespace %s\n  kubectl -n %s create secret generic adit-agent --from-file=ADIT_TOKEN=agent.token\n  --set agent.inviteTokenSecret.name=adit-agent" .Release.Namespace .Release.Namespace) }}
{{- end }}
{{- dict "name" $s.name "key" ($s.key | default "") | toJson }}
{{- end }}

{{- define "adit-agent.directPort" -}}
{{- .Values.directConnect.port | default .Values.directConnect.irohPort | int }}
{{- end }}

{{/* What must fit together across values. */}}
{{- define "adit-agent.check" -}}
{{- $name := .Values.serviceMonitor.main.serviceName }}
{{- if not (has $name (list "" "main" (include "adit-agent.fullname" .))) }}
{{- fail (printf "serviceMonitor.main.serviceName is %q, but metrics are at the Service %q; write main" $name (include "adit-agent.fullname" .)) }}
{{- end }}
{{- $d := .Values.directConnect }}
{{- if and $d.port (ne (int $d.port) (int $d.irohPort)) (ne (int $d.irohPort) 51820) }}
{{- fail (printf "directConnect.port is %d and directConnect.irohPort %d: they are two names of one port; give one" (int $d.port) (int $d.irohPort)) }}
{{- end }}
{{- end }}

{{/* Namespaces that origins name: name, name.namespace, name.namespace.svc and longer. */}}
{{- define "adit-agent.originNamespaces" -}}
{{- $out := list }}
{{- range concat .Values.agent.services .Values.agent.tcpServices .Values.agent.udpServices }}
{{- $host := regexReplaceAll "^[a-z0-9]+://" .origin "" | regexFind "^[a-zA-Z0-9.-]+" | lower }}
{{- $parts := splitList "." $host }}
{{- if eq (len $parts) 1 }}
{{- $out = append $out $.Release.Namespace }}
{{- else if and (or (eq (len $parts) 2) (eq (index $parts 2 | default "") "svc")) (not (regexMatch "^[0-9.]+$" $host)) }}
{{- $out = append $out (index $parts 1) }}
{{- end }}
{{- end }}
{{- $out | uniq | sortAlpha | join "," }}
{{- end }}

{{/* Alerts on an agent; the argument selects its Pods. */}}
{{- define "adit-agent.alerts" -}}
- alert: AditAgentWithoutSession
  expr: >-
    sum by (namespace, pod) (adit_build_info{ {{- . -}} }) unless sum by (namespace, pod) (adit_agent_sessions{ {{- . -}} }) > 0 or absent(adit_build_info{ {{- . -}} })
  for: 5m
  labels: {severity: critical}
  annotations:
    summary: >-
      No agent has a session with an edge
    description: >-
      Visitors reach nothing through {{ "{{ $labels.pod }}" }}. Its /readyz says why, per edge and for the hub.
- alert: AditAgentServiceRefused
  expr: >-
    sum by (namespace, pod, verdict) (adit_agent_services{ {{- . -}} ,verdict!~"ok|pending"}) > 0
  for: 5m
  labels: {severity: warning}
  annotations:
    summary: >-
      A declared service is refused ({{ "{{ $labels.verdict }}" }})
    description: >-
      /readyz of {{ "{{ $labels.pod }}" }} and `adit agents get` name the service and the remedy.
- alert: AditAgentReconnects
  expr: >-
    sum by (namespace, pod) (rate(adit_agent_session_reconnects_total{ {{- . -}} }[15m])) > 0.05
  for: 15m
  labels: {severity: warning}
  annotations:
    summary: >-
      Sessions break again and again
    description: >-
      {{ "{{ $labels.pod }}" }} has opened {{ "{{ $value | humanize }}" }} sessions a second for 15 minutes.
- alert: AditAgentStreamErrors
  expr: >-
    sum by (namespace, pod, reason) (rate(adit_agent_stream_errors_total{ {{- . -}} }[10m])) > 0.1
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: >-
      An agent cannot reach origins ({{ "{{ $labels.reason }}" }})
    description: >-
      {{ "{{ $labels.pod }}" }} refuses streams. Its log names the origin.
- alert: AditAgentChangedFileInvalid
  expr: >-
    increase(adit_agent_reloads_total{ {{- . -}} ,result="invalid"}[15m]) > 0
  labels: {severity: warning}
  annotations:
    summary: >-
      A changed {{ "{{ $labels.file }}" }} is not used
    description: >-
      {{ "{{ $labels.pod }}" }} goes on with the last good one; its log says what is wrong.
{{- end }}
