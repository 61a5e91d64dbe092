"""Opens the features that `shoal.feature` lists."""

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import cast

from shoal.feature import Feature, features
from shoal.kernel.commands import ChatCommand
from shoal.kernel.ports import Tool
from shoal.services import Services
from shoal.threads.commands import CommandRouter
from shoal.tools.registry import Registry


async def open_features(services: Services, stack: AsyncExitStack) -> None:
    for feature in features():
        await _open(services, feature, stack)


async def _open(services: Services, feature: Feature, stack: AsyncExitStack) -> None:
    if feature.open:
        opened = cast("Callable[[Services], AbstractAsyncContextManager[None]]", feature.load(feature.open))
        await stack.enter_async_context(opened(services))
    if feature.attach:
        cast("Callable[[Services], None]", feature.load(feature.attach))(services)
    if feature.tools:
        for tool in cast("Callable[[Services], Iterable[Tool]]", feature.load(feature.tools))(services):
            services[Registry].add(tool)
    if feature.chat_commands:
        commands = cast("Callable[[Services], Iterable[ChatCommand]]", feature.load(feature.chat_commands))
        for command in commands(services):
            services[CommandRouter].add(command)
