"""Responses that are sent while the request body is still arriving. The server drains the rest within bounds, then
closes the connection.
"""

import asyncio
from collections.abc import Sequence

import pytest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.surfaces.http import server
from shoal.surfaces.http.server import BodyDrain

DECLARED = {"content-length": "3000000"}


class Exchange:
    """One request and its response. After the last chunk of the body, nothing more arrives."""

    def __init__(self, pieces: Sequence[bytes], headers: dict[str, str], *, ends: bool = True) -> None:
        self.waiting = [
            {"type": "http.request", "body": piece, "more_body": not ends or number < len(pieces)}
            for number, piece in enumerate(pieces, 1)
        ]
        self.headers = headers
        self.taken_at_answer = -1
        self.taken = 0
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        if not self.waiting:
            await asyncio.Event().wait()
        self.taken += 1
        return self.waiting.pop(0)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body" and message.get("body"):
            self.taken_at_answer = self.taken
        self.sent.append(message)

    async def run(self, app: ASGIApp, idle_seconds: float = 0.01) -> None:
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        await BodyDrain(app, idle_seconds)(scope, self.receive, self.send)

    @property
    def closes(self) -> bool:
        return (b"connection", b"close") in self.sent[0]["headers"]

    @property
    def is_over(self) -> bool:
        return not self.sent[-1].get("more_body", False)


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("no", 413)(scope, receive, send)


async def refuse_after_two(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await receive()
    await refuse(scope, receive, send)


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await Response("thanks")(scope, receive, send)


@pytest.mark.parametrize("app", [refuse, refuse_after_two])
@pytest.mark.parametrize("headers", [DECLARED, {"transfer-encoding": "chunked"}])
async def test_the_answer_is_sent_before_the_rest_of_the_body_is_read(app: ASGIApp, headers: dict[str, str]) -> None:
    exchange = Exchange([b"x"] * 9, headers)
    await exchange.run(app)
    assert 0 <= exchange.taken_at_answer < 9
    assert exchange.taken == 9
    assert exchange.closes
    assert exchange.is_over
    assert b"".join(message.get("body", b"") for message in exchange.sent[1:]) == b"no"


async def test_a_fully_read_body_needs_no_draining() -> None:
    exchange = Exchange([b"x"] * 3, DECLARED)
    await exchange.run(read_all)
    assert not exchange.closes
    assert len(exchange.sent) == 2


async def test_a_small_buffered_body_keeps_the_connection_open() -> None:
    exchange = Exchange([b"{}"], {"content-length": "2"})
    await exchange.run(refuse)
    assert not exchange.closes
    assert exchange.taken == 1


async def test_a_request_without_a_body_is_unaffected() -> None:
    exchange = Exchange([b""], {})
    await exchange.run(refuse)
    assert exchange.taken == 0
    assert not exchange.closes


async def test_a_refused_body_is_never_requested() -> None:
    exchange = Exchange([b"x"] * 3, {**DECLARED, "expect": "100-continue"})
    await exchange.run(refuse)
    assert exchange.taken_at_answer == 0
    assert exchange.closes
    assert exchange.is_over


async def test_a_body_that_pauses_is_given_up() -> None:
    exchange = Exchange([b"x"] * 3, DECLARED, ends=False)
    await exchange.run(refuse)
    assert exchange.taken == 3
    assert exchange.is_over


@pytest.mark.parametrize("bound", ["DROPPED_BYTES_MAX", "DROPPED_SECONDS_MAX"])
async def test_an_endless_body_is_read_within_bounds(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, bound, 0.05)
    exchange = Exchange([b"x"] * 3, DECLARED, ends=False)
    await exchange.run(refuse, idle_seconds=30)
    assert exchange.is_over


async def test_a_disconnected_client_is_not_awaited() -> None:
    exchange = Exchange([b"x"] * 2, DECLARED, ends=False)
    exchange.waiting.append({"type": "http.disconnect"})
    await exchange.run(refuse, idle_seconds=30)
    assert exchange.taken == 3
    assert exchange.is_over
