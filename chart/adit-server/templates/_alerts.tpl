{{/* Alerts on a server; the argument selects its Pods. */}}
{{- define "adit-server.alerts" -}}
- alert: AditServerAbsent
  expr: >-
    absent(adit_build_info{ {{- . -}} })
  for: 5m
  labels: {severity: critical}
  annotations:
    summary: No server is up
    description: >-
      No Pod of the server answers for its metrics; its visitors reach nothing.
- alert: AditEdgeWithoutHub
  expr: >-
    adit_edge_connected_to_hub{ {{- . -}} } == 0
  for: 5m
  labels: {severity: warning}
  annotations:
    summary: An edge does not hear the hub
    description: >-
      {{ "{{ $labels.pod }}" }} serves what it knew last; changes do not reach it.
- alert: AditEdgeWithoutAgents
  expr: >-
    sum by (namespace, pod) (adit_edge_tunnels{ {{- . -}} }) > 0 unless sum by (namespace, pod) (adit_edge_sessions{ {{- . -}} }) > 0
  for: 5m
  labels: {severity: critical}
  annotations:
    summary: An edge has tunnels and no agent
    description: >-
      No agent has a session with {{ "{{ $labels.pod }}" }}; visitors get no_agent.
- alert: AditEdgeServerErrors
  expr: >-
    sum by (namespace, pod) (rate(adit_edge_http_requests_total{ {{- . -}} ,code=~"5.."}[10m])) > 0.05 * sum by (namespace, pod) (rate(adit_edge_http_requests_total{ {{- . -}} }[10m]))
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: More than 5 % of requests fail
    description: >-
      The header Adit-Error of the answers of {{ "{{ $labels.pod }}" }} names the reason.
- alert: AditEdgeRefusesConnections
  expr: >-
    sum by (namespace, pod, reason) (rate(adit_front_refused_total{ {{- . -}} }[10m])) > 1
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: >-
      Connections are refused ({{ "{{ $labels.reason }}" }})
    description: >-
      {{ "{{ $labels.pod }}" }} refuses {{ "{{ $value | humanize }}" }} connections a second before they reach a tunnel.
- alert: AditEdgeDropsDatagrams
  expr: >-
    sum by (namespace, pod, reason) (rate(adit_edge_udp_datagrams_dropped_total{ {{- . -}} }[10m])) > 10
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: >-
      Datagrams are dropped ({{ "{{ $labels.reason }}" }})
    description: >-
      {{ "{{ $labels.pod }}" }} drops {{ "{{ $value | humanize }}" }} datagrams a second.
- alert: AditHubErrors
  expr: >-
    sum by (namespace, pod, procedure, code) (rate(adit_hub_requests_total{ {{- . -}} ,code=~"internal|unavailable|unknown"}[10m])) > 0.05
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: >-
      The hub fails ({{ "{{ $labels.procedure }}" }}: {{ "{{ $labels.code }}" }})
    description: >-
      The log of {{ "{{ $labels.pod }}" }} says why; often it is the database.
{{- end }}
