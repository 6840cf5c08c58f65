{{/* Names carry the release, so that several releases stand beside each other. */}}
{{- define "adit.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 52 characters: names of Pods and of what belongs to the release add to it. */}}
{{- define "adit.fullname" -}}
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

{{- define "adit.selectorLabels" -}}
app.kubernetes.io/name: {{ include "adit.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "adit.podLabels" -}}
{{ include "adit.selectorLabels" . }}
app.kubernetes.io/part-of: adit
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "adit.labels" -}}
{{ include "adit.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: adit
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "adit.image" -}}
{{- with .Values.image -}}
{{- if .registry }}{{ .registry }}/{{ end }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ if .digest }}@{{ .digest }}{{ end }}
{{- end }}
{{- end }}

{{/* Cluster roles of releases of the same name in other namespaces are others. */}}
{{- define "adit.clusterName" -}}
{{- printf "%s-%s" (.Release.Namespace | trunc 60 | trimSuffix "-") (include "adit.fullname" .) }}
{{- end }}

{{- define "adit.agentName" -}}
{{- include "adit.fullname" . }}-agent
{{- end }}

{{- define "adit.agentServiceAccount" -}}
{{- .Values.agent.serviceAccount.name | default (ternary (include "adit.agentName" .) "default" .Values.agent.serviceAccount.create) }}
{{- end }}

{{- define "adit.agentSelector" -}}
{{ include "adit.selectorLabels" . }}
app.kubernetes.io/component: agent
{{- end }}

{{- define "adit.agentSecret" -}}
{{- .Values.agent.token.existingSecret | default (printf "%s-token" (include "adit.agentName" .)) }}
{{- end }}

{{/* What this version cannot do, and what must fit together across values. */}}
{{- define "adit.check" -}}
{{- if .Values.operator.enabled }}
{{- fail "operator.enabled is true, but the operator is not in this version; install the agent alone with --set operator.enabled=false --set agent.enabled=true" }}
{{- end }}
{{- $t := .Values.agent.token }}
{{- if and .Values.agent.enabled (not (or $t.value $t.existingSecret)) }}
{{- fail (printf "agent.token is empty: the agent needs the token that `adit agents create NAME` prints. Either give agent.token.value, or keep it out of Helm:\n  kubectl create namespace %s\n  kubectl -n %s create secret generic adit-agent --from-literal=%s=TOKEN\n  --set agent.token.existingSecret=adit-agent" .Release.Namespace .Release.Namespace $t.secretKey) }}
{{- end }}
{{- end }}

{{/* Alerts on an agent; the argument selects its Pods. */}}
{{- define "adit.agentAlerts" -}}
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
