"""The tools that look things up in the store, for the registry of a running app."""

from shoal.domain.ports import Tool
from shoal.domain.store import Store
from shoal.tools.artifacts import ArtifactFiles
from shoal.tools.builtin.artifacts import ReadArtifactTool


def lookup_tools(store: Store, files: ArtifactFiles) -> tuple[Tool, ...]:
    """What an agent can look up beyond its prompt."""
    return (ReadArtifactTool(store.artifacts, files),)
