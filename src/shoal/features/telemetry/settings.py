"""[telemetry]."""

from collections.abc import Mapping
from typing import Literal

from shoal.kernel.section import Section


class TelemetrySettings(Section, frozen=True, kw_only=True):
    """Traces, metrics and logs for OpenTelemetry (the extra `otel`), to where the usual OTEL_* variables say."""

    enabled: Literal["auto", "on", "off"] = "auto"
    """`auto`: on where OTEL_EXPORTER_OTLP_ENDPOINT, or one for a single signal, is set."""
    content: bool = False
    """Also send what people and models say, and what tools return."""

    def is_on(self, environ: Mapping[str, str]) -> bool:
        """Whether anything is sent, with these variables."""
        if self.enabled == "off" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return False
        named = any(name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") for name in environ)
        return named or self.enabled == "on"
