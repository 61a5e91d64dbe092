"""Export telemetry while Shoal runs. The SDK is imported only if telemetry is on, because the import takes half a
second.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from shoal.delivery.hub import Hub
from shoal.features.telemetry.settings import TelemetrySettings
from shoal.kernel.live_config import LiveConfig
from shoal.permissions.redact import Redactor
from shoal.running import Runtime

if TYPE_CHECKING:
    from shoal.services import Services


@asynccontextmanager
async def open_telemetry(services: "Services") -> AsyncGenerator[None]:
    """Export telemetry if it is on. Raises ConfigError if the `otel` extra is not installed."""
    settings = services[LiveConfig].current.section(TelemetrySettings)
    if not settings.is_on(os.environ) or services[Runtime].state == "stopped":
        yield
        return
    from shoal.features.telemetry.otel import telemetry

    async with telemetry(
        services[LiveConfig].current.providers, services[Hub], services[Redactor].redact, with_content=settings.content
    ):
        yield
