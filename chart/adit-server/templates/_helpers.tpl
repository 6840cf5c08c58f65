{{/* Names carry the release, so that several releases stand beside each other. */}}
{{- define "adit-server.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 52 characters: names of Pods and of what belongs to the release add to it. */}}
{{- define "adit-server.fullname" -}}
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

{{- define "adit-server.selectorLabels" -}}
app.kubernetes.io/name: {{ include "adit-server.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "adit-server.podLabels" -}}
{{ include "adit-server.selectorLabels" . }}
app.kubernetes.io/part-of: adit
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "adit-server.labels" -}}
{{ include "adit-server.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: adit
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "adit-server.image" -}}
{{- with .Values.image -}}
{{- if .registry }}{{ .registry }}/{{ end }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ if .digest }}@{{ .digest }}{{ end }}
{{- end }}
{{- end }}

{{/* Cluster roles of releases of the same name in other namespaces are others. */}}
{{- define "adit-server.clusterName" -}}
{{- printf "%s-%s" (.Release.Namespace | trunc 60 | trimSuffix "-") (include "adit-server.fullname" .) }}
{{- end }}

{{- define "adit-server.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "adit-server.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "adit-server.postgres" -}}
{{- if or .Values.database.existingSecret (hasPrefix "postgres" .Values.database.url) }}yes{{ end }}
{{- end }}

{{- define "adit-server.edge" -}}
{{- if has "edge" .Values.roles }}yes{{ end }}
{{- end }}

{{- define "adit-server.hub" -}}
{{- if has "hub" .Values.roles }}yes{{ end }}
{{- end }}

{{- define "adit-server.daemon" -}}
{{- if eq .Values.edge.kind "DaemonSet" }}yes{{ end }}
{{- end }}

{{- define "adit-server.many" -}}
{{- if and (gt (int .Values.replicas) 1) (not (include "adit-server.daemon" .)) }}yes{{ end }}
{{- end }}

{{/* An edge with siblings has an address of its own. */}}
{{- define "adit-server.advertise" -}}
{{- .Values.edge.advertise | default (ternary "$(HOST_IP):443" "" (not (not (include "adit-server.daemon" .)))) }}
{{- end }}

{{/* What must fit together across values. */}}
{{- define "adit-server.check" -}}
{{- $v := .Values }}
{{- $hub := include "adit-server.hub" . }}
{{- $edge := include "adit-server.edge" . }}
{{- $postgres := include "adit-server.postgres" . }}
{{- if and $hub (not $v.domain) }}
{{- fail "domain is required: tunnels will be at <label>.<domain>, and the hub at hub.<domain>; set --set domain=example.com" }}
{{- end }}
{{- if and $v.database.url $v.database.existingSecret }}
{{- fail "database.url and database.existingSecret both name a database; give one of them" }}
{{- end }}
{{- if and $postgres (not $v.secretKey.existingSecret) }}
{{- fail (printf "secretKey.existingSecret is required with PostgreSQL: all hubs of a database seal with one key. Make it once, and keep a copy beside the backups:\n  openssl rand -base64 32 > secret.key\n  kubectl -n %s create secret generic adit-secret-key --from-file=%s=secret.key" .Release.Namespace $v.secretKey.key) }}
{{- end }}
{{- if and $hub (include "adit-server.daemon" .) }}
{{- fail "edge.kind DaemonSet is for further edges: install hub and edges as two releases, the second with --set roles={edge},edge.kind=DaemonSet,join.existingSecret=…" }}
{{- end }}
{{- if and $hub (not $postgres) (gt (int $v.replicas) 1) }}
{{- fail (printf "replicas is %d, but SQLite is a file of one Pod; use PostgreSQL (database.existingSecret), or replicas 1" (int $v.replicas)) }}
{{- end }}
{{- if and $hub (not $postgres) (not $v.persistence.enabled) }}
{{- fail "persistence.enabled is false, but SQLite keeps everything on the volume; use PostgreSQL (database.existingSecret), or persistence" }}
{{- end }}
{{- if and $v.persistence.existingClaim (gt (int $v.replicas) 1) }}
{{- fail (printf "persistence.existingClaim is one volume, but there are %d replicas; leave it empty, and each gets its own" (int $v.replicas)) }}
{{- end }}
{{- if and $edge (not $hub) (not $v.join.existingSecret) }}
{{- fail (printf "join.existingSecret is required with roles [edge]. Make a token on the hub, and a Secret of it:\n  adit edge invite --quiet > edge.token\n  kubectl -n %s create secret generic adit-edge --from-file=%s=edge.token" .Release.Namespace $v.join.secretKey) }}
{{- end }}
{{- if and $hub $v.join.existingSecret }}
{{- fail "join.existingSecret makes a further edge of an existing hub, but roles has hub; use roles [edge]" }}
{{- end }}
{{- if and $edge (not (include "adit-server.advertise" .)) (or (not $hub) (include "adit-server.many" .)) }}
{{- fail "edge.advertise is required here: agents must be able to dial this very edge; write for example \"edge-$(POD_INDEX).example.com:443\" and point each name at the Service of its Pod" }}
{{- end }}
{{- if and (include "adit-server.many" .) $edge $v.edge.advertise (not (regexMatch "\\$\\((POD_INDEX|POD_NAME|NODE_NAME|HOST_IP)\\)" $v.edge.advertise)) }}
{{- fail (printf "edge.advertise is %q for all of %d replicas; write $(POD_INDEX) where they differ" $v.edge.advertise (int $v.replicas)) }}
{{- end }}
{{- if and (eq $v.tls.mode "files") $hub (not $v.tls.certificates) }}
{{- fail "tls.mode is files, but tls.certificates names no Secret; write for example [{name: \"*.example.com\", secret: wildcard-tls}]" }}
{{- end }}
{{- if and $v.tls.certificates (ne $v.tls.mode "files") }}
{{- fail "tls.certificates are used with tls.mode files only" }}
{{- end }}
{{- if and $v.oidc.issuer (not (and $v.oidc.clientId $v.oidc.existingSecret)) }}
{{- fail "oidc.issuer needs oidc.clientId and oidc.existingSecret" }}
{{- end }}
{{- $n := len (concat (include "adit-server.expand" (dict "ports" $v.tcpPorts "name" "tcpPorts") | splitList ",") (include "adit-server.expand" (dict "ports" $v.udpPorts "name" "udpPorts") | splitList ",")) }}
{{- if and (gt $n 250) $edge (not (include "adit-server.daemon" .)) }}
{{- fail (printf "tcpPorts and udpPorts are %d ports, but a Service carries about 250; use shorter ranges, or edge.kind DaemonSet" $n) }}
{{- end }}
{{- end }}

{{/* Ports and ranges, one by one, comma separated. */}}
{{- define "adit-server.expand" -}}
{{- $name := .name }}
{{- $out := list }}
{{- range .ports }}
{{- $p := printf "%v" . | splitList "-" }}
{{- $first := first $p | int }}
{{- $last := last $p | int }}
{{- if or (gt $first $last) (lt $first 1) (gt $last 65535) }}
{{- fail (printf "%s: %v is not a port from 1 to 65535, or \"first-last\"" $name .) }}
{{- end }}
{{- if gt (sub $last $first) 1000 }}
{{- $out = concat $out (untilStep 0 1000 1) }}
{{- else }}
{{- $out = concat $out (untilStep $first (int (add $last 1)) 1) }}
{{- end }}
{{- end }}
{{- $out | uniq | join "," }}
{{- end }}

{{/* Ports of a Service. */}}
{{- define "adit-server.ports" -}}
{{- $v := .Values }}
- {name: https, port: 443, targetPort: https, protocol: TCP{{ with $v.service.nodePorts.https }}{{ if eq $v.service.type "ClusterIP" }}{{ else }}, nodePort: {{ . }}{{ end }}{{ end }}}
{{- if include "adit-server.edge" . }}
- {name: quic, port: 443, targetPort: quic, protocol: UDP{{ with $v.service.nodePorts.https }}{{ if eq $v.service.type "ClusterIP" }}{{ else }}, nodePort: {{ . }}{{ end }}{{ end }}}
{{- end }}
{{- if $v.service.http }}
- {name: http, port: 80, targetPort: http, protocol: TCP{{ with $v.service.nodePorts.http }}{{ if eq $v.service.type "ClusterIP" }}{{ else }}, nodePort: {{ . }}{{ end }}{{ end }}}
{{- end }}
{{- if include "adit-server.edge" . }}
{{- range $proto, $ports := dict "tcp" $v.tcpPorts "udp" $v.udpPorts }}
{{- range include "adit-server.expand" (dict "ports" $ports "name" $proto) | splitList "," }}
{{- if . }}
- {name: {{ $proto }}-{{ . }}, port: {{ . }}, targetPort: {{ . }}, protocol: {{ upper $proto }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "adit-server.podSecurityContext" -}}
{{- if .Values.podSecurityContext }}
{{- toYaml .Values.podSecurityContext }}
{{- else if include "adit-server.daemon" . }}
runAsUser: 0
runAsGroup: 0
seccompProfile: {type: RuntimeDefault}
{{- else }}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
# Ports 443 and 80 without a capability.
sysctls:
  - {name: net.ipv4.ip_unprivileged_port_start, value: "0"}
{{- end }}
{{- end }}

{{- define "adit-server.securityContext" -}}
{{- if .Values.securityContext }}
{{- toYaml .Values.securityContext }}
{{- else }}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- if include "adit-server.daemon" . }}
  add: [NET_BIND_SERVICE]
  {{- end }}
{{- end }}
{{- end }}
