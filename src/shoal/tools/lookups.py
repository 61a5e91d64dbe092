"""The tools that look things up in the store, for the registry of a running app."""

from collections.abc import Mapping, Sequence

from shoal.domain.ports import ChatAdapter, Tool
from shoal.domain.store import Store
from shoal.tools.artifacts import ArtifactFiles
from shoal.tools.builtin.artifacts import ReadArtifactTool
from shoal.tools.builtin.search import SearchChannelTool, SearchHistoryTool


def lookup_tools(
    store: Store, files: ArtifactFiles, adapters: Mapping[str, ChatAdapter], owners: Sequence[str]
) -> tuple[Tool, ...]:
    """What an agent can look up beyond its prompt. `owners` (PLATFORM:USER) may search every conversation."""
    return (
        ReadArtifactTool(store.artifacts, files),
        SearchHistoryTool(store.search, owners),
        SearchChannelTool(store.search, adapters),
    )
