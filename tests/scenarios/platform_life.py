"""A real Shoal process and a fake platform on loopback, with one conversation for each kind of platform."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec
from tests import processes
from tests.processes import Process, process

from shoal.kernel.clock import SystemClock
from shoal.testing.model import FakeModel
from shoal.testing.platforms import discord_world, matrix, matrix_world, slack_methods, slack_wire, telegram
from shoal.testing.platforms.discord import TOKEN, FakeDiscord
from shoal.testing.platforms.google_chat import FakeGoogleChat
from shoal.testing.platforms.matrix import FakeMatrix
from shoal.testing.platforms.slack import APP_TOKEN, BOT_TOKEN, FakeSlack
from shoal.testing.platforms.teams import FakeTeams
from shoal.testing.platforms.telegram import FakeTelegram
from shoal.testing.platforms.webhook import SECRET, FakeHookChat
from shoal.testing.platforms.wire import LoopbackServer

WAIT_SECONDS = 60.0


class Fake(Protocol):
    server: LoopbackServer


class Place(msgspec.Struct):
    """A conversation between ada and the bot on one platform.

    - `settings`: returns the settings of the bot's account.
    - `says`: sends a message to the bot.
    - `shown`: returns the texts of the bot's visible messages.
    - `once`: whether the platform suppresses a repeated post.
    - `ready`: returns True if the bot is connected.
    - `called`: the path below `/platforms/` that the platform calls, or empty.
    - `files`: files that the home directory needs, by name.
    """

    platform: str
    fake: Fake
    settings: Callable[[], Mapping[str, object]]
    says: Callable[[str], Awaitable[object]]
    shown: Callable[[], list[str]]
    once: bool = True
    ready: Callable[[], bool] = lambda: True
    called: str = ""
    files: Callable[[], Mapping[str, bytes]] = dict


def telegram_place() -> Place:
    fake = FakeTelegram()
    fake.add_chat(7)
    return Place(
        "telegram",
        fake,
        lambda: {"token": telegram.TOKEN, "api_base": fake.server.address, "owner": "7"},
        lambda text: fake.says(7, text),
        lambda: [message.text for message in fake.said(7)],
        once=False,
    )


def discord_place() -> Place:
    fake = FakeDiscord(SystemClock())
    direct = fake.direct()
    return Place(
        "discord",
        fake,
        lambda: {"token": TOKEN, "api_base": fake.api_base, "owner": discord_world.ADA},
        lambda text: fake.says(direct, text),
        lambda: [message.text for message in fake.said(direct)],
        ready=lambda: bool(fake.world.commands),
    )


def slack_place() -> Place:
    """Use a channel instead of a direct conversation. There, replies are threaded and streamed."""
    fake = FakeSlack(SystemClock().now().timestamp())
    fake.add_room(slack_wire.Room("C00000001", "harbour", "channel", ["UADA", slack_methods.BOT]))
    return Place(
        "slack",
        fake,
        lambda: {
            "bot_token": BOT_TOKEN, "app_token": APP_TOKEN, "api_base": f"{fake.address}/api/", "owner": "UADA",
        },
        lambda text: fake.says("C00000001", f"<@{slack_methods.BOT}> {text}"),
        lambda: [message.text for message in fake.said("C00000001")],
    )  # fmt: skip


def matrix_place() -> Place:
    fake = FakeMatrix(SystemClock())
    room = fake.add_room()
    return Place(
        "matrix",
        fake,
        lambda: {
            "homeserver": fake.address, "user": matrix_world.BOT, "access_token": matrix.TOKEN,
            "owner": matrix_world.ADA,
        },
        lambda text: fake.says(room, text),
        lambda: [message.text for message in fake.said(room)],
        ready=lambda: fake.syncs > 0,
    )  # fmt: skip


def teams_place() -> Place:
    fake = FakeTeams(SystemClock())
    fake.add("a:1ada", "personal")
    return Place(
        "teams",
        fake,
        lambda: {**fake.settings(), "owner": "aad-ada"},
        lambda text: fake.says("a:1ada", text),
        lambda: [message.text for message in fake.said("a:1ada")],
        once=False,
        ready=lambda: fake.granted > 0,
        called="teams",
    )


def google_chat_place() -> Place:
    fake = FakeGoogleChat(SystemClock())
    fake.add("DmAda", "DIRECT_MESSAGE")
    return Place(
        "google_chat",
        fake,
        lambda: {**fake.settings(), "service_account_file": "app.json", "owner": "1001"},
        lambda text: fake.says("DmAda", text),
        lambda: [message.shown for message in fake.said("DmAda")],
        ready=lambda: fake.granted > 0,
        called="google_chat",
        files=lambda: {"app.json": fake.key_file()},
    )


def webhook_place() -> Place:
    fake = FakeHookChat(SystemClock())

    async def says(text: str) -> None:
        """Send the text. Retry after status 503, which Shoal returns while it starts."""
        async with asyncio.timeout(60):
            await fake.says("harbour", "7", text)
            while fake.status == 503:
                await asyncio.to_thread(threading.Event().wait, 0.05)
                await fake.says("harbour", "7", text)

    return Place(
        "webhook.ticker",
        fake,
        lambda: {"secret": SECRET, "post_url": f"{fake.server.address}/take", "owner": "ada"},
        says,
        lambda: [message.text for message in fake.messages],
        called="ticker",
    )


PLACES: Mapping[str, Callable[[], Place]] = {
    "telegram": telegram_place,
    "discord": discord_place,
    "slack": slack_place,
    "matrix": matrix_place,
    "teams": teams_place,
    "google_chat": google_chat_place,
    "webhook": webhook_place,
}


async def until(holds: Callable[[], bool]) -> None:
    await asyncio.to_thread(processes.until, holds)


@asynccontextmanager
async def opened(name: str) -> AsyncGenerator[Place]:
    place = PLACES[name]()
    whole = place.fake if isinstance(place.fake, FakeDiscord | FakeSlack) else place.fake.server
    await whole.start()
    yield place
    await whole.stop()


@asynccontextmanager
async def life(home: Path, place: Place, model: FakeModel) -> AsyncGenerator[Process]:
    """Run `shoal run` in a separate process until the block ends. The block starts when the bot is connected."""
    (home / "shoal.toml").write_text(_toml(f"platforms.{place.platform}", place.settings()))
    for name, content in place.files().items():
        (home / name).write_bytes(content)
    settings = {
        "SHOAL_MODEL__NAME": "fake/fake-1",
        "SHOAL_PROVIDERS__FAKE__KIND": "openai",
        "SHOAL_PROVIDERS__FAKE__BASE_URL": f"{model.url}/v1",
        "SHOAL_SANDBOX__KIND": "host",
        "SHOAL_WEB__PUBLIC_URL": "https://bot.example.org",
    }
    running = process("run", home, settings)
    found = await asyncio.to_thread(running.__enter__)
    try:
        if isinstance(place.fake, FakeTeams | FakeGoogleChat | FakeHookChat):
            place.fake.call(f"{found.address}/platforms/{place.called}")
        await until(place.ready)
        yield found
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


def _toml(table: str, settings: Mapping[str, object]) -> str:
    return "\n".join([f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items()), ""])
