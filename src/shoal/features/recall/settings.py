"""Settings in [recall]."""

from typing import Annotated

from msgspec import Meta

from shoal.kernel.section import Section


class RecallSettings(Section, frozen=True, kw_only=True):
    """Search by meaning in memory, notes, documents and conversations. See docs/recall.md."""

    model: Annotated[
        str, Meta(pattern=r"^$|^[^/\s]+/\S+$", description="a model in the form PROVIDER/MODEL, or empty")
    ] = ""
    """Embedding model, as PROVIDER/MODEL. It receives every text that recall can search. If empty, recall searches by
    words.
    """
    history: bool = True
    """Whether to embed messages of conversations. Otherwise, they are searched only by words."""
    texts_per_minute: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    """Maximum number of texts embedded per minute in the background. Queries are embedded immediately."""
