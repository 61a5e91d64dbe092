"""Settings in [telemetry]."""

from collections.abc import Mapping
from typing import Literal

from shoal.kernel.section import Section


class TelemetrySettings(Section, frozen=True, kw_only=True):
    """Export of traces, metrics and logs with OpenTelemetry (extra `otel`). The standard OTEL_* variables set the
    destination."""

    enabled: Literal["auto", "on", "off"] = "auto"
    """Whether to export. `auto` exports if OTEL_EXPORTER_OTLP_ENDPOINT, or the endpoint variable of a single signal, is
    set."""
    content: bool = False
    """Whether to export messages, replies and tool results too."""

    def is_on(self, environ: Mapping[str, str]) -> bool:
        if self.enabled == "off" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return False
        named = any(name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") for name in environ)
        return named or self.enabled == "on"
