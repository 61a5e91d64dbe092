"""The built-in tools of every agent, ready to be used: the place where they are given what they work with."""

from shoal.domain.permissions import Action
from shoal.domain.ports import ToolContext
from shoal.permissions.actions import shell_actions
from shoal.tools.builtin.channel import UploadTool
from shoal.tools.builtin.clock import TimeTool
from shoal.tools.builtin.edit import EditTool, StrReplaceTool
from shoal.tools.builtin.files import CreateFileTool, ListTool, ReadTool, ViewTool, WriteTool
from shoal.tools.builtin.memory import NoteTool, RememberTool
from shoal.tools.builtin.reminders import RemindTool
from shoal.tools.builtin.shell import BashTool, ShellBounds
from shoal.tools.locks import PathLocks
from shoal.tools.registry import Registry


def add_standard_tools(registry: Registry, bounds: ShellBounds | None = None, locks: PathLocks | None = None) -> None:
    """Register the built-in tools. `view`, `create_file` and `str_replace` are shown to agents that name them only."""
    held = locks or PathLocks()
    registry.add(BashTool(_shell_actions, bounds or ShellBounds()))
    for tool in (ReadTool(), ListTool(), UploadTool(), TimeTool(), RememberTool(), NoteTool(), RemindTool()):
        registry.add(tool)
    registry.add(WriteTool(held))
    registry.add(EditTool(held))
    for alias in (ViewTool(), CreateFileTool(held), StrReplaceTool(held)):
        registry.add(alias, listed=False)


def _shell_actions(name: str, command: str, context: ToolContext) -> tuple[Action, ...]:
    return shell_actions(
        name, command, cwd=context.agent.workspace, mounts=context.mounts, isolated=context.sandbox.isolated
    )
