"""Calls that platforms make to us: an adapter takes them in, whichever web server hands them over."""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import msgspec


class HttpAnswer(msgspec.Struct, frozen=True):
    """What a platform that called us gets back."""

    status: int
    body: bytes = b""
    media_type: str = "application/json"


@runtime_checkable
class HttpInbound(Protocol):
    """An adapter whose platform calls `POST /platforms/NAME[/ACCOUNT]`; it checks by itself who calls."""

    async def receive(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Take a call in. `headers` by lower-case names; never raises for what is in the call."""
        ...


class Webhook(msgspec.Struct, frozen=True):
    """A webhook that starts turns: in `thread`, or in a new one of `channel` of `platform`. `secret` is asked for at
    each call; `template` says what the agent is told. A body that only a bearer secret vouches for is a new call after
    `repeat_seconds`."""

    secret: Callable[[], str]
    template: str = ""
    thread: str = ""
    platform: str = ""
    channel: str = ""
    agent: str = ""
    repeat_seconds: float = 43_200.0
