"""Socket Mode: one connection, from its opening to its end.

Source: docs.slack.dev/apis/events-api/using-socket-mode.
"""

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from shoal.domain.errors import ConfigError, PlatformError
from shoal.domain.foreign import UNREADABLE

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

FRAME_BYTES_MAX = 4_194_304
OPEN_SECONDS = 20.0


class Opened(msgspec.Struct, frozen=True):
    """What apps.connections.open answers."""

    url: str


class Envelope(msgspec.Struct, frozen=True):
    """A frame from Slack; what is inside depends on its `type`."""

    type: str = ""
    envelope_id: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    reason: str = ""


Confirm = Callable[[], Awaitable[None]]
"""Tells Slack that an envelope need not come again; raises nothing."""
Take = Callable[[Envelope, Confirm], object]


def check_package(package: str = "websockets") -> None:
    """Raise ConfigError when the package for Socket Mode is missing."""
    if find_spec(package) is None:
        raise ConfigError(["Slack's Socket Mode needs a package. Install it with: pip install 'shoal[slack]'"])


async def listen(url: str, hello: Callable[[], None], take: Take) -> None:
    """Give every envelope to `take` until Slack asks to connect anew. Raises PlatformError when it breaks before.

    `take` only starts the work, so that nothing waits behind it; `hello` is told when the connection stands.
    """
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException

    try:
        async with connect(url, max_size=FRAME_BYTES_MAX, open_timeout=OPEN_SECONDS) as socket:
            await _follow(socket, hello, take)
    except (OSError, WebSocketException) as error:
        raise PlatformError(f"The connection to Slack broke: {type(error).__name__}.") from error


async def _follow(socket: "ClientConnection", hello: Callable[[], None], take: Take) -> None:
    async for frame in socket:
        envelope = _envelope(frame)
        if _is_last(envelope):
            return
        if envelope.type == "hello":
            hello()
        if envelope.envelope_id:
            take(envelope, _confirmer(socket, envelope.envelope_id))
    raise PlatformError("Slack closed the connection.")


def _is_last(envelope: Envelope) -> bool:
    """Whether Slack wants a new connection, and does not only warn of it. Raises PlatformError where it wants none."""
    if envelope.type == "disconnect" and envelope.reason == "link_disabled":
        raise PlatformError("Slack ended the connection: Socket Mode is turned off in the app's settings.")
    return envelope.type == "disconnect" and envelope.reason != "warning"


def _confirmer(socket: "ClientConnection", envelope_id: str) -> Confirm:
    from websockets.exceptions import ConnectionClosed

    async def confirm() -> None:
        try:
            await socket.send(msgspec.json.encode({"envelope_id": envelope_id}).decode())
        except ConnectionClosed:
            return  # it comes again on the next connection, and is known by then

    return confirm


def _envelope(frame: str | bytes) -> Envelope:
    try:
        return msgspec.json.decode(frame, type=Envelope)
    except UNREADABLE:
        return Envelope()
