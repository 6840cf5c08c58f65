{{/* Settings of the server. */}}
{{- define "adit-server.env" -}}
{{- $v := .Values }}
{{- $hub := include "adit-server.hub" . }}
{{- $edge := include "adit-server.edge" . }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_INDEX
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
- name: ADIT_DATA_DIR
  value: /var/lib/adit
- name: ADIT_ROLES
  value: {{ join "," $v.roles }}
- name: ADIT_LISTEN_HTTP
  value: {{ ternary ":80" "" $v.service.http | quote }}
- name: ADIT_LISTEN_ADMIN
  value: {{ printf ":%d" (int $v.metrics.port) | quote }}
- name: ADIT_DRAIN_TIMEOUT
  value: {{ printf "%ds" (sub $v.terminationGracePeriodSeconds 10) }}
- name: ADIT_LOG_LEVEL
  value: {{ $v.log.level }}
- name: ADIT_LOG_FORMAT
  value: {{ $v.log.format }}
{{- with $v.domain }}
- name: ADIT_DOMAIN
  value: {{ . | quote }}
{{- end }}
{{- with $v.hubHost }}
- name: ADIT_HUB_HOST
  value: {{ . | quote }}
{{- end }}
{{- if $hub }}
- name: ADIT_TCP_PORTS
  value: {{ $v.tcpPorts | join "," | quote }}
- name: ADIT_UDP_PORTS
  value: {{ $v.udpPorts | join "," | quote }}
{{- end }}
{{- if $edge }}
{{- with include "adit-server.advertise" . }}
- name: ADIT_ADVERTISE
  value: {{ . | quote }}
{{- end }}
{{- with $v.edge.region }}
- name: ADIT_REGION
  value: {{ . | quote }}
{{- end }}
{{- with $v.proxyProtocolFrom }}
- name: ADIT_PROXY_PROTOCOL_FROM
  value: {{ join "," . | quote }}
{{- end }}
{{- end }}
{{- with $v.trustedProxies }}
- name: ADIT_TRUSTED_PROXIES
  value: {{ join "," . | quote }}
{{- end }}
{{- with $v.join.existingSecret }}
- name: ADIT_JOIN_FILE
  value: /etc/adit/join/{{ $v.join.secretKey }}
{{- end }}
{{- if $hub }}
{{- with $v.tls.mode }}
- name: ADIT_TLS
  value: {{ . }}
{{- end }}
{{- if $v.tls.certificates }}
- name: ADIT_CERT_DIR
  value: /etc/adit/certs
{{- end }}
{{- with $v.tls.acme.email }}
- name: ADIT_ACME_EMAIL
  value: {{ . | quote }}
{{- end }}
{{- with $v.tls.acme.directory }}
- name: ADIT_ACME_DIRECTORY
  value: {{ . | quote }}
{{- end }}
{{- with $v.tls.acme.eab }}
{{- if .keyId }}
- name: ADIT_ACME_EAB_KID
  value: {{ .keyId | quote }}
- name: ADIT_ACME_EAB_KEY_FILE
  value: /etc/adit/eab/{{ .secretKey }}
{{- end }}
{{- end }}
{{- with $v.database }}
{{- if or .url .existingSecret }}
- name: ADIT_DATABASE_URL_FILE
  value: /etc/adit/database/{{ .secretKey }}
{{- end }}
{{- end }}
{{- with $v.secretKey.existingSecret }}
- name: ADIT_SECRET_KEY_FILE
  value: /etc/adit/secret-key/{{ $v.secretKey.key }}
{{- end }}
{{- with $v.oidc }}
{{- if .issuer }}
- name: ADIT_OIDC_ISSUER
  value: {{ .issuer | quote }}
- name: ADIT_OIDC_CLIENT_ID
  value: {{ .clientId | quote }}
- name: ADIT_OIDC_CLIENT_SECRET_FILE
  value: /etc/adit/oidc/{{ .secretKey }}
- name: ADIT_OIDC_GROUPS_CLAIM
  value: {{ .groupsClaim | quote }}
{{- with .adminGroup }}
- name: ADIT_OIDC_ADMIN_GROUP
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Secrets that are files: name of the volume, Secret and key. */}}
{{- define "adit-server.secrets" -}}
{{- $v := .Values }}
{{- $out := list }}
{{- with $v.join }}{{ if .existingSecret }}{{ $out = append $out (list "join" .existingSecret .secretKey) }}{{ end }}{{ end }}
{{- if include "adit-server.hub" . }}
{{- with $v.database }}{{ if or .url .existingSecret }}{{ $out = append $out (list "database" (.existingSecret | default (printf "%s-database" (include "adit-server.fullname" $))) .secretKey) }}{{ end }}{{ end }}
{{- with $v.secretKey }}{{ if .existingSecret }}{{ $out = append $out (list "secret-key" .existingSecret .key) }}{{ end }}{{ end }}
{{- with $v.oidc }}{{ if .issuer }}{{ $out = append $out (list "oidc" .existingSecret .secretKey) }}{{ end }}{{ end }}
{{- with $v.tls.acme.eab }}{{ if .keyId }}{{ $out = append $out (list "eab" .existingSecret .secretKey) }}{{ end }}{{ end }}
{{- end }}
{{- $out | toJson }}
{{- end }}

{{- define "adit-server.mounts" -}}
{{- range include "adit-server.secrets" . | fromJsonArray }}
- {name: {{ first . }}, mountPath: /etc/adit/{{ first . }}, readOnly: true}
{{- end }}
{{- if and .Values.tls.certificates (include "adit-server.hub" .) }}
- {name: certs, mountPath: /etc/adit/certs, readOnly: true}
{{- end }}
{{- end }}

{{/* A volume of a claim that the StatefulSet makes is not among them. */}}
{{- define "adit-server.volumes" -}}
{{- $p := .Values.persistence }}
{{- if not $p.enabled }}
- {name: data, emptyDir: {}}
{{- else if include "adit-server.daemon" . }}
- name: data
  hostPath:
    path: {{ $p.hostPath | default (printf "/var/lib/adit/%s" (include "adit-server.clusterName" .)) }}
    type: DirectoryOrCreate
{{- else if $p.existingClaim }}
- name: data
  persistentVolumeClaim: {claimName: {{ $p.existingClaim }}}
{{- end }}
{{- range include "adit-server.secrets" . | fromJsonArray }}
- name: {{ index . 0 }}
  secret:
    secretName: {{ index . 1 }}
    defaultMode: 0440
    items:
      - {key: {{ index . 2 }}, path: {{ index . 2 }}}
{{- end }}
{{- if and .Values.tls.certificates (include "adit-server.hub" .) }}
- name: certs
  projected:
    defaultMode: 0440
    sources:
      {{- range .Values.tls.certificates }}
      {{- $file := .name | replace "*" "_wildcard" }}
      - secret:
          name: {{ .secret }}
          items:
            - {key: tls.crt, path: {{ $file }}.crt}
            - {key: tls.key, path: {{ $file }}.key}
      {{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
