"""Tests of a person's input before it is written: a model's first answer or a platform's token."""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import anyio
import msgspec

from shoal.accounts import make_adapters
from shoal.backend import unwrapped
from shoal.config import Config, open_catalog
from shoal.kernel.agents import Listen
from shoal.kernel.clock import SystemClock
from shoal.kernel.commands import CommandRequest, CommandTable
from shoal.kernel.errors import ConfigError, NotFound, PlatformError, ProviderRefused, ShoalError
from shoal.kernel.events import Scope
from shoal.kernel.home import Home
from shoal.kernel.ids import ApprovalId, CardId, ThreadId
from shoal.kernel.messages import Inbound, ModelFailed, ModelRequest, Prompt, Reaction, Receipt, TextDelta, UserMessage
from shoal.kernel.permissions import Asker
from shoal.kernel.ports import Settings
from shoal.kernel.settings_platforms import AccountSettings, PlatformsSettings
from shoal.models.catalog import build_provider, existing_model
from shoal.platforms.account import ChatAccount
from shoal.setup.choices import OWN_SERVER

ANSWER_SECONDS = 120.0
"""Maximum time to wait for a model's first answer, including loading a model in this process."""
ANSWER_TOKENS = 200
CONNECT_SECONDS = 30.0


def plain(error: Exception) -> str:
    """Return an error's text without the advice to edit the file and restart, because the person will be asked
    again.
    """
    text = " ".join(error.problems if isinstance(error, ConfigError) else str(error).split())
    text = re.sub(
        r" Check (?:api_key|base_url|model\.name)\b.{0,300}?\.(?= |$)| Set platforms\..{0,300}? then restart\.",
        "",
        text,
    )
    text = re.sub(rf"^{OWN_SERVER}(?= at | \()", "The server", text)
    return text.removeprefix("startup option: ")


async def offered(config: Config, name: str) -> list[str]:
    """List the models of a configured provider. Raises ProviderRefused and ProviderDown."""
    provider = build_provider(name, config.providers[name], SystemClock(), os.environ, config.home)
    try:
        return [model.id for model in await provider.models()]
    finally:
        await provider.close()


async def offered_by_package(config: Config, name: str) -> list[str]:
    """List the models of an installed package's provider. Raises NotFound, ProviderRefused and ProviderDown."""
    catalog = open_catalog(config, os.environ, SystemClock())
    try:
        if name not in catalog.providers:
            raise NotFound(f"No installed package has a provider named {name!r}.")
        return [model.id for model in await catalog.providers[name].models()]
    finally:
        await catalog.close()


async def answer_of(config: Config, name: str) -> str:
    """Send a short test message to a model and return the answer, at most 200 characters.

    Raises ShoalError with one sentence, or InvalidInput for an unknown model.
    """
    catalog = open_catalog(config, os.environ, SystemClock())
    texts: list[str] = []
    try:
        route = catalog.route(name)
        listing = (await catalog.refresh()).get(route.provider.name)
        if listing is not None and listing.error:
            raise ProviderRefused(listing.error)
        existing_model(catalog, name)
        question = UserMessage("Say hello in one short sentence.")
        asked = ModelRequest(route.model, "", (question,), max_output_tokens=ANSWER_TOKENS)
        async with asyncio.timeout(ANSWER_SECONDS):
            async for event in route.provider.stream(asked):
                if isinstance(event, TextDelta):
                    texts.append(event.text)
                elif isinstance(event, ModelFailed):
                    raise ShoalError(event.message)
    except TimeoutError as error:
        raise ShoalError(f"{name} did not answer within {ANSWER_SECONDS:.0f} s. Try a smaller model.") from error
    finally:
        await catalog.close()
    return " ".join("".join(texts).split())[:200] or "(nothing)"


NOTHING_ASKED = "Shoal does not call models during setup."


class SetupInbox:
    """Implements `InboxPort` for setup. Queues direct messages to the bot and stores nothing."""

    pause_seconds = 0.0

    def __init__(self) -> None:
        self.commands = CommandTable()
        self.prompts = asyncio.Queue[Prompt]()

    async def admits(self, message: Prompt) -> bool:
        """Queue a direct message. Always return False, because nobody is admitted during setup."""
        if message.direct and not message.author.is_bot:
            self.prompts.put_nowait(message)
        return False

    async def send(self, message: Inbound) -> Receipt:
        if isinstance(message, Prompt):
            await self.admits(message)
        return Receipt("dropped")

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        raise NotFound(NOTHING_ASKED)

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        raise NotFound(NOTHING_ASKED)

    async def always(
        self, asked: ApprovalId | CardId, by: Asker, numbers: Sequence[int] = (), *, or_thread: bool = False
    ) -> str:
        raise NotFound(NOTHING_ASKED)

    async def take_back(self, asked: str, by: Asker, thread: str = "") -> str:
        raise NotFound(NOTHING_ASKED)

    async def undo_files(self, card: CardId, by: Asker) -> str:
        raise NotFound(NOTHING_ASKED)

    async def choose(self, card: CardId, ticked: Sequence[int], by: Asker) -> str:
        raise NotFound(NOTHING_ASKED)

    async def listens(self, thread: ThreadId) -> Listen:
        return "all"

    async def react(self, reaction: Reaction) -> str:
        return ""

    async def command(self, asked: CommandRequest) -> str:
        return ""

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        return ()

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        return None


def adapter_of(config: Config, platform: str, settings: Settings) -> ChatAccount[AccountSettings]:
    """Create the adapter of a platform's only account. Raises ConfigError if a package is missing."""
    alone = PlatformsSettings(accounts={platform: config.platforms.of(platform)})
    home, clock = Home(config.home), SystemClock()
    made = make_adapters(msgspec.structs.replace(config, platforms=alone), home, settings, clock)[-1]
    assert isinstance(made, ChatAccount)
    return cast(ChatAccount[AccountSettings], made)


@asynccontextmanager
async def connected(
    config: Config, platform: str, settings: Settings
) -> AsyncGenerator[tuple[ChatAccount[AccountSettings], SetupInbox]]:
    """Connect a platform's account while the block runs. Raises ConfigError, and PlatformError with the reason."""
    adapter, inbox = adapter_of(config, platform, settings), SetupInbox()

    async def run() -> None:
        try:
            await adapter.run(inbox)
        finally:
            with anyio.CancelScope(shield=True):
                await adapter.close()

    async with unwrapped(), anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.move_on_after(CONNECT_SECONDS):
            async with anyio.create_task_group() as racing:

                async def first(event: asyncio.Event) -> None:
                    await event.wait()
                    racing.cancel_scope.cancel()

                racing.start_soon(first, adapter.connected)
                racing.start_soon(first, adapter.failed)
        try:
            if adapter.failure or not adapter.connected.is_set():
                raise PlatformError(adapter.failure or f"{platform} did not answer within {CONNECT_SECONDS:.0f} s.")
            await adapter.check()
            yield adapter, inbox
        finally:
            tasks.cancel_scope.cancel()


async def try_account(config: Config, platform: str) -> None:
    """Connect once to test an account, without storing anything. Raises PlatformError and ConfigError."""
    async with connected(config, platform, PassingSettings()):
        pass


class PassingSettings:
    """Implements `Settings` in memory, for the test of an account."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], str] = {}

    async def get(self, scope: str, key: str) -> str | None:
        return self._values.get((scope, key))

    async def put(self, scope: str, key: str, value: str) -> None:
        self._values[scope, key] = value

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        if is_as_expected := self._values.get((scope, key)) == expected:
            self._values[scope, key] = value
        return is_as_expected

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        rows = sorted((key, value) for (there, key), value in self._values.items() if there == scope and key > after)
        return rows[:limit]

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        if is_as_expected := self._values.get((scope, key)) == expected:
            del self._values[scope, key]
        return is_as_expected
