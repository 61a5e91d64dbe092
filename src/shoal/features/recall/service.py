"""Keep the recall index up to date while Shoal runs."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from shoal.backend import Backend
from shoal.features.recall.library import Library
from shoal.maintenance import Upkeep
from shoal.tools.documents import DocumentStates

if TYPE_CHECKING:
    from shoal.services import Services


@asynccontextmanager
async def open_library(services: "Services") -> AsyncGenerator[None]:
    """Run the background indexing if an embedding model is configured. Raises ConfigError if `recall.model` is
    invalid.
    """
    library = services[Library]
    services[DocumentStates].append(library.look)
    if library.embeddings is None:
        yield
        return
    upkeep = services[Upkeep]
    services[Backend].add_single("recall", upkeep.keep("recall", library.run))
    try:
        yield
    finally:
        await library.embeddings.close()
