"""Keeps the library up to date while Shoal runs."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from shoal.features.recall.library import Library
from shoal.maintenance import Upkeep

if TYPE_CHECKING:
    from shoal.app import App


@asynccontextmanager
async def open_library(app: "App") -> AsyncGenerator[None]:
    """Embed what changes in the background, where a model for that is set up. Raises ConfigError."""
    library = app.features[Library]
    app.document_states.append(library.look)
    if library.embeddings is None:
        yield
        return
    upkeep = Upkeep(app.store.settings, app.clock, app.notices.tell_owner)
    app.backend.add_single("recall", upkeep.keep("recall", library.run))
    try:
        yield
    finally:
        await library.embeddings.close()
