"""Telemetry: traces, metrics and logs for OpenTelemetry."""

from shoal.feature import Feature

FEATURE = Feature(
    name="telemetry",
    settings={"telemetry": "settings:TelemetrySettings"},
    open="service:open_telemetry",
)
