"""The tools every agent has to choose from."""

from collections.abc import Callable

from shoal.domain.permissions import Action
from shoal.domain.ports import ToolContext
from shoal.domain.web import Fetcher
from shoal.tools.builtin.artifacts import ReadArtifactTool
from shoal.tools.builtin.channel import UploadTool
from shoal.tools.builtin.clock import TimeTool
from shoal.tools.builtin.edit import EditTool, StrReplaceTool
from shoal.tools.builtin.files import CreateFileTool, ListTool, ReadTool, ViewTool, WriteTool
from shoal.tools.builtin.memory import NoteTool, RememberTool
from shoal.tools.builtin.message import MessageTool
from shoal.tools.builtin.process import KillTool, LogsTool, ProcessListTool, StartTool
from shoal.tools.builtin.reminders import RemindTool
from shoal.tools.builtin.schedule import ScheduleTool
from shoal.tools.builtin.search import SearchChannelTool, SearchHistoryTool
from shoal.tools.builtin.self_edit import (
    DeleteDocTool,
    DeleteSkillTool,
    EditDocTool,
    SetModelTool,
    SetPermissionsTool,
    SetSystemPromptTool,
    WriteDocTool,
    WriteSkillTool,
)
from shoal.tools.builtin.shell import BashTool, ShellBounds
from shoal.tools.builtin.subagent import AskAgentTool, SpawnTool, SubagentTool
from shoal.tools.builtin.web import ReadUrlTool, WebSearchTool
from shoal.tools.fetch import GuardedFetcher
from shoal.tools.locks import PathLocks
from shoal.tools.registry import Registry

SERVICE_TOOLS = (
    ReadArtifactTool, SearchHistoryTool, SearchChannelTool, MessageTool, ScheduleTool,
    StartTool, ProcessListTool, LogsTool, KillTool, SubagentTool, SpawnTool, AskAgentTool,
    SetSystemPromptTool, SetModelTool, SetPermissionsTool, WriteDocTool, EditDocTool, DeleteDocTool, WriteSkillTool,
    DeleteSkillTool,
)  # fmt: skip
"""The built-in tools that stand on the services of a running Shoal, which adds them itself."""


def standard_tools(
    bounds: ShellBounds,
    fetcher: Fetcher | None = None,
    brave_key: Callable[[], str] = lambda: "",
    *,
    with_hardware: bool = False,
) -> Registry:
    """A registry with the built-in tools; other names for the same (`view`, `create_file`, `str_replace`) unlisted.

    `fetcher` opens what the web tools ask for, a guarded client unless told; `brave_key` is asked at each search.
    `with_hardware` adds those for the machine's I2C and SPI buses.
    """
    fetcher = fetcher or GuardedFetcher()
    registry = Registry()
    locks = PathLocks()
    for tool in (
        BashTool(command_actions, bounds),
        ReadTool(),
        WriteTool(locks),
        EditTool(locks),
        ListTool(),
        UploadTool(),
        TimeTool(),
        RememberTool(),
        NoteTool(),
        RemindTool(),
        ReadUrlTool(fetcher),
        WebSearchTool(fetcher, brave_key),
    ):
        registry.add(tool)
    if with_hardware:
        from shoal.tools.builtin.hardware import hardware_tools

        for tool in hardware_tools():
            registry.add(tool)
    for alias in (ViewTool(), CreateFileTool(locks), StrReplaceTool(locks)):
        registry.add(alias, listed=False)
    return registry


def command_actions(tool: str, command: str, context: ToolContext) -> tuple[Action, ...]:
    """What a command of a tool will do, in the first of the call's mounts."""
    cwd = context.mounts[0].host
    from shoal.permissions.actions import shell_actions  # not loaded before the first command is judged

    return shell_actions(tool, command, cwd=cwd, mounts=context.mounts, isolated=context.sandbox.isolated)
