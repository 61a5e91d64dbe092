"""The section [recall] of the file."""

from typing import Annotated

from msgspec import Meta

from shoal.kernel.section import Section


class RecallSettings(Section, frozen=True, kw_only=True):
    """Recall by meaning, over memory, notes, documents and conversations; see docs/recall.md."""

    model: Annotated[str, Meta(pattern=r"^$|^[^/\s]+/\S+$")] = ""
    """The model for embeddings, PROVIDER/MODEL, which gets all that can be recalled; empty: recall goes by words."""
    history: bool = True
    """Whether what is said in conversations is embedded too; else it is found by words."""
    texts_per_minute: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    """How many texts are embedded in the background at most; a question is embedded at once."""
