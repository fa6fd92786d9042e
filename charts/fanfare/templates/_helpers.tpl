{{/* The image, by digest if there is one. */}}
{{- define "fanfare.image" -}}
{{- $chart := .Chart -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{/* Flags that controller and speakers must agree on; the defaults are left out. */}}
{{- define "fanfare.classArgs" -}}
{{- range .Values.lbClasses }}
- --lb-class={{ . }}
{{- end }}
{{- if .Values.classOnly }}
- --class-only
{{- end }}
{{- end -}}

{{/* Annotations of a hook: its events, its place among them. It is deleted once all is done;
after a failure it stays to be looked at, until the next time. */}}
{{- define "fanfare.hook" -}}
helm.sh/hook: {{ index . 0 }}
helm.sh/hook-weight: {{ index . 1 | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
helm.sh/hook-output-log-policy: hook-failed
{{- end -}}

{{/* A Job that runs the program once, beside the controllers: its name, its arguments, the root
context. Its account has its name. */}}
{{- define "fanfare.job" -}}
{{- $name := index . 0 -}}
{{- $args := index . 1 -}}
{{- with index . 2 -}}
template:
  metadata:
    labels:
      app.kubernetes.io/name: fanfare
      app.kubernetes.io/component: {{ $name }}
  spec:
    {{- with .Values.imagePullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    serviceAccountName: {{ $name }}
    restartPolicy: Never
    priorityClassName: {{ .Values.controller.priorityClassName }}
    {{- with .Values.controller.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.controller.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    securityContext:
      {{- toYaml .Values.controller.podSecurityContext | nindent 6 }}
    containers:
      - name: {{ $name }}
        image: {{ include "fanfare.image" . }}
        imagePullPolicy: {{ .Values.image.pullPolicy }}
        args: {{ toJson $args }}
        securityContext:
          {{- toYaml .Values.controller.securityContext | nindent 10 }}
{{- end -}}
{{- end -}}
