"""Shoal: a self-hosted runtime for AI agents that live in chats."""

from importlib import import_module
from typing import TYPE_CHECKING

from shoal.kernel.version import VERSION

if TYPE_CHECKING:
    from shoal.app import open_app as open_app
    from shoal.config import Config as Config
    from shoal.kernel.commands import ChatCommand as ChatCommand
    from shoal.kernel.commands import CommandRequest as CommandRequest
    from shoal.kernel.commands import chat_command as chat_command
    from shoal.kernel.hooks import HookRuling as HookRuling
    from shoal.kernel.hooks import Hooks as Hooks
    from shoal.kernel.hooks import PlannedCall as PlannedCall
    from shoal.kernel.hooks import TurnSummary as TurnSummary
    from shoal.kernel.ports import ChatAdapter as ChatAdapter
    from shoal.kernel.ports import Provider as Provider
    from shoal.kernel.ports import Sandbox as Sandbox
    from shoal.kernel.ports import Tool as Tool
    from shoal.kernel.ports import ToolContext as ToolContext
    from shoal.kernel.ports import ToolOutput as ToolResult
    from shoal.kernel.traits import Traits as Traits
    from shoal.tools.functions import tool as tool

__all__ = [
    "ChatAdapter", "ChatCommand", "CommandRequest", "Config", "HookRuling", "Hooks", "PlannedCall", "Provider",
    "Sandbox", "Tool", "ToolContext", "ToolResult", "Traits", "TurnSummary", "chat_command", "open_app", "tool",
]  # fmt: skip
__version__ = VERSION

_HOMES = {
    "open_app": ("shoal.app", "open_app"),
    "Config": ("shoal.config", "Config"),
    "ChatCommand": ("shoal.kernel.commands", "ChatCommand"),
    "CommandRequest": ("shoal.kernel.commands", "CommandRequest"),
    "chat_command": ("shoal.kernel.commands", "chat_command"),
    **{name: ("shoal.kernel.hooks", name) for name in ("HookRuling", "Hooks", "PlannedCall", "TurnSummary")},
    "ToolResult": ("shoal.kernel.ports", "ToolOutput"),
    "Traits": ("shoal.kernel.traits", "Traits"),
    "tool": ("shoal.tools.functions", "tool"),
}


def __getattr__(name: str) -> object:
    """Import public names and `shoal.testing` on first use, because `import shoal` must be fast."""
    if name == "testing":
        return import_module("shoal.testing")
    if name not in __all__:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    module, attribute = _HOMES.get(name, ("shoal.kernel.ports", name))
    return getattr(import_module(module), attribute)
