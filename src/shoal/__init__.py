"""Shoal: a self-hosted runtime for AI agents that live in chats."""

from importlib import import_module
from typing import TYPE_CHECKING

from shoal.kernel.version import VERSION

if TYPE_CHECKING:
    from shoal.app import open_app as open_app
    from shoal.config import Config as Config
    from shoal.kernel.ports import ChatAdapter as ChatAdapter
    from shoal.kernel.ports import Provider as Provider
    from shoal.kernel.ports import Sandbox as Sandbox
    from shoal.kernel.ports import Tool as Tool
    from shoal.kernel.ports import ToolContext as ToolContext
    from shoal.kernel.ports import ToolOutput as ToolResult
    from shoal.kernel.traits import Traits as Traits
    from shoal.tools.functions import tool as tool

__all__ = [
    "ChatAdapter", "Config", "Provider", "Sandbox", "Tool", "ToolContext", "ToolResult", "Traits", "open_app", "tool"
]  # fmt: skip
__version__ = VERSION

_HOMES = {
    "open_app": ("shoal.app", "open_app"),
    "Config": ("shoal.config", "Config"),
    "ToolResult": ("shoal.kernel.ports", "ToolOutput"),
    "Traits": ("shoal.kernel.traits", "Traits"),
    "tool": ("shoal.tools.functions", "tool"),
}


def __getattr__(name: str) -> object:
    """Load a public name, or `shoal.testing`, on first use, so that `import shoal` costs nothing."""
    if name == "testing":
        return import_module("shoal.testing")
    if name not in __all__:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    module, attribute = _HOMES.get(name, ("shoal.kernel.ports", name))
    return getattr(import_module(module), attribute)
