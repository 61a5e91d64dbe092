"""Parts that tests or an embedding program add or replace."""

from collections.abc import Callable, Mapping

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.commands import ChatCommand
from shoal.kernel.hooks import Hooks
from shoal.kernel.ports import ChatAdapter, Completion, Models, Sandbox, Tool
from shoal.net.addresses import Fetcher
from shoal.permissions.access import AccessRules
from shoal.store.driver import Driver
from shoal.tools.taint_spans import SYSTEM_FILE_CLOCK, FileClock


class Overrides(msgspec.Struct, frozen=True):
    """Parts to add or replace."""

    clock: Clock | None = None
    models: Models | None = None
    sandbox: Sandbox | None = None
    adapters: tuple[ChatAdapter, ...] = ()
    access: Mapping[str, AccessRules] = {}
    tools: tuple[Tool, ...] = ()
    """Additional tools. They are available before interrupted turns continue."""
    commands: tuple[ChatCommand, ...] = ()
    hooks: Mapping[str, Hooks] = {}
    """Hooks by name. They replace hooks of the same name in installed packages."""
    on_complete: Completion | None = None
    """Called with the thread, turn and reply of each turn that finishes in this process. Its errors are logged."""
    fetcher: Fetcher | None = None
    wrap_driver: Callable[[Driver], Driver] | None = None
    driver: Driver | None = None
    """An already open database for the role `offline`. The caller must close it."""
    file_clock: FileClock = SYSTEM_FILE_CLOCK


NO_OVERRIDES = Overrides()
