"""Telemetry: export traces, metrics and logs with OpenTelemetry."""

from shoal.feature import Feature

FEATURE = Feature(
    name="telemetry",
    settings={"telemetry": "settings:TelemetrySettings"},
    open="service:open_telemetry",
)
