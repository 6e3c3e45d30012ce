{{- /* Labels of an object; takes (list $ component). */ -}}
{{- define "gpudoctor.labels" -}}
{{ include "gpudoctor.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end }}

{{- /* What selects the pods of a component. */ -}}
{{- define "gpudoctor.selector" -}}
app.kubernetes.io/name: gpudoctor
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "gpudoctor.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* What every pod has. */ -}}
{{- define "gpudoctor.pod" -}}
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The seccomp profile of every pod. */ -}}
{{- define "gpudoctor.seccomp" -}}
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- /* What every container has. */ -}}
{{- define "gpudoctor.container" -}}
image: {{ include "gpudoctor.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{- /* The name of a pod, its namespace and its node, for what it publishes. */ -}}
{{- define "gpudoctor.identity" -}}
- name: NODE_NAME
  valueFrom: { fieldRef: { fieldPath: spec.nodeName } }
- name: POD_NAME
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
- name: POD_NAMESPACE
  valueFrom: { fieldRef: { fieldPath: metadata.namespace } }
{{- end }}

{{- /* Where metrics and probes are answered. */ -}}
{{- define "gpudoctor.answers" -}}
ports:
  - { name: metrics, containerPort: 9400, protocol: TCP }
startupProbe:
  httpGet: { path: /healthz, port: metrics }
  failureThreshold: 30
  periodSeconds: 2
livenessProbe:
  httpGet: { path: /healthz, port: metrics }
  periodSeconds: 20
  timeoutSeconds: 5
readinessProbe:
  httpGet: { path: /readyz, port: metrics }
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}
