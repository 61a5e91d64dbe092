"""Sends telemetry while Shoal runs, where that is on. Nothing else imports the SDK, which takes half a second."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from shoal.features.telemetry.settings import TelemetrySettings

if TYPE_CHECKING:
    from shoal.app import App


@asynccontextmanager
async def open_telemetry(app: "App") -> AsyncGenerator[None]:
    """Raises ConfigError where the extra is missing."""
    settings = app.config.section(TelemetrySettings)
    if not settings.is_on(os.environ):
        yield
        return
    from shoal.features.telemetry.otel import telemetry

    async with telemetry(app.config.providers, app.hub, app.executor.redactor.redact, with_content=settings.content):
        yield
