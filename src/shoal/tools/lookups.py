"""The tools that work with the store and the platforms, for the registry of a running app."""

from collections.abc import Mapping

from shoal.domain.files import Files
from shoal.domain.messages import Judge
from shoal.domain.ports import ChatAdapter, Tool
from shoal.domain.store import Store
from shoal.tools.builtin.artifacts import ReadArtifactTool
from shoal.tools.builtin.message import MessageTool
from shoal.tools.builtin.search import SearchChannelTool, SearchHistoryTool


def lookup_tools(store: Store, files: Files, adapters: Mapping[str, ChatAdapter], judge: Judge) -> tuple[Tool, ...]:
    """What an agent can look up beyond its prompt, and say beside its answer.

    `judge` says whom of the platforms' people to trust.
    """
    return (
        ReadArtifactTool(store.artifacts, files),
        SearchHistoryTool(store.search),
        SearchChannelTool(store.search, adapters, judge),
        MessageTool(adapters),
    )
