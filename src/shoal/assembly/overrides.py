"""Parts that a test or an embedding program adds or replaces."""

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
    """Parts to add or replace.

    `tools` are available before interrupted turns continue. `hooks` have names, like those of packages. `on_complete`
    is awaited with the thread, turn and reply of each finished turn in this process. Its errors are logged. `fetcher`
    opens addresses of the public web. `driver` is an open database. The role `offline` uses it, and its owner closes
    it.
    """

    clock: Clock | None = None
    models: Models | None = None
    sandbox: Sandbox | None = None
    adapters: tuple[ChatAdapter, ...] = ()
    access: Mapping[str, AccessRules] = {}
    tools: tuple[Tool, ...] = ()
    commands: tuple[ChatCommand, ...] = ()
    hooks: Mapping[str, Hooks] = {}
    on_complete: Completion | None = None
    fetcher: Fetcher | None = None
    wrap_driver: Callable[[Driver], Driver] | None = None
    driver: Driver | None = None
    file_clock: FileClock = SYSTEM_FILE_CLOCK


NO_OVERRIDES = Overrides()
