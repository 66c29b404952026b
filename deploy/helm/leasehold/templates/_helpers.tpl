{{- define "leasehold.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects the servers; it never changes. */}}
{{- define "leasehold.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{/* Labels of all that is not a worker. */}}
{{- define "leasehold.labels" -}}
{{ include "leasehold.selector" . }}
{{ include "leasehold.common" . }}
{{- end -}}

{{- define "leasehold.common" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* A value as text: `--set` takes 1 for a number and true for a boolean. */}}
{{- define "leasehold.text" -}}
{{- kindIs "string" . | ternary . (toJson .) -}}
{{- end -}}

{{/* Names and texts of labels, annotations and the like. */}}
{{- define "leasehold.texts" -}}
{{- range $name, $value := . }}
{{ $name }}: {{ include "leasehold.text" $value | quote }}
{{- end }}
{{- end -}}

{{- define "leasehold.tag" -}}
{{- if kindIs "float64" .Values.image.tag -}}
{{- fail "image.tag: write it in quotes, since YAML reads 1.0 as 1, and 007 as 7" -}}
{{- end -}}
{{- $tag := kindIs "invalid" .Values.image.tag | ternary "" (toString .Values.image.tag) -}}
{{- $tag | default .Chart.AppVersion -}}
{{- end -}}

{{- define "leasehold.image" -}}
{{- $repository := .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (include "leasehold.tag" .) -}}
{{- end -}}
{{- end -}}

{{- define "leasehold.scheme" -}}
{{- if .Values.tls.secretName }}https{{ else }}http{{ end -}}
{{- end -}}

{{/* No root, and nothing that a process is not sure to need. */}}
{{- define "leasehold.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "leasehold.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The pod of a server: the same for a Deployment and a StatefulSet, but for its volume. */}}
{{- define "leasehold.pod" -}}
metadata:
  labels:
    {{- include "leasehold.labels" . | nindent 4 }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- include "leasehold.texts" . | trim | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  # Longer than the pause of preStop and drain_timeout_s together.
  terminationGracePeriodSeconds: {{ add (ceil (.Values.settings.drain_timeout_s | default 25)) 20 }}
  securityContext:
    {{- include "leasehold.podSecurity" . | nindent 4 }}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- include "leasehold.texts" . | trim | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "leasehold.selector" . | nindent 10 }}
  containers:
    - name: leasehold
      image: {{ include "leasehold.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [leasehold, serve]
      ports:
        - name: http
          containerPort: 10001
      env:
        # A folder of its own on the volume, which the server makes for itself alone.
        - name: LEASEHOLD_DATA
          value: /var/lib/leasehold/data
        - name: LEASEHOLD_ACCOUNTS
          valueFrom:
            secretKeyRef:
              name: {{ .Values.secret.name }}
              key: {{ .Values.secret.keys.accounts }}
        - name: LEASEHOLD_INSPECTORS
          valueFrom:
            secretKeyRef:
              name: {{ .Values.secret.name }}
              key: {{ .Values.secret.keys.inspectors }}
              optional: true
        {{- if eq .Values.store.kind "postgresql" }}
        - name: LEASEHOLD_STORE_URL
          valueFrom:
            secretKeyRef:
              name: {{ .Values.secret.name }}
              key: {{ .Values.secret.keys.storeUrl }}
        {{- end }}
        {{- if .Values.tls.secretName }}
        - name: LEASEHOLD_TLS_CERT
          value: /etc/leasehold/tls/tls.crt
        - name: LEASEHOLD_TLS_KEY
          value: /etc/leasehold/tls/tls.key
        {{- end }}
        {{- range $name, $value := .Values.settings }}
        - name: LEASEHOLD_{{ upper $name }}
          value: {{ include "leasehold.text" $value | quote }}
        {{- end }}
        {{- with include "leasehold.environment" . | trim }}
        {{- . | nindent 8 }}
        {{- end }}
      {{- with .Values.environmentSecrets }}
      envFrom:
        {{- range . }}
        - secretRef:
            name: {{ . }}
            optional: true
        {{- end }}
      {{- end }}
      startupProbe:
        {{- include "leasehold.probe" (dict "root" . "path" "/healthz") | nindent 8 }}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        {{- include "leasehold.probe" (dict "root" . "path" "/healthz") | nindent 8 }}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      readinessProbe:
        {{- include "leasehold.probe" (dict "root" . "path" "/readyz") | nindent 8 }}
        periodSeconds: 3
        timeoutSeconds: 3
        failureThreshold: 2
      lifecycle:
        preStop:
          # Until all know that no more requests should come here; the server stops at once.
          exec:
            command: [sleep, "5"]
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- include "leasehold.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - name: data
          mountPath: /var/lib/leasehold
        - name: tmp
          mountPath: /tmp
        {{- if .Values.tls.secretName }}
        - name: tls
          mountPath: /etc/leasehold/tls
          readOnly: true
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- if eq .Values.store.kind "postgresql" }}
    - name: data
      emptyDir: {}
    {{- end }}
    {{- with .Values.tls.secretName }}
    - name: tls
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
{{- end -}}

{{- define "leasehold.environment" -}}
{{- range $name, $value := .Values.environment }}
- name: {{ $name }}
  value: {{ include "leasehold.text" $value | quote }}
{{- end }}
{{- end -}}

{{- define "leasehold.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: {{ include "leasehold.scheme" .root | upper }}
{{- end -}}
