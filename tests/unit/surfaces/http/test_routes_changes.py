"""The change stream names a list only if its content changed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import cast

import pytest

from shoal.delivery.hub import Hub
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import StoreUnavailable
from shoal.kernel.events import Event, TurnFinished
from shoal.kernel.ids import ThreadId, TurnId
from shoal.store.journal import Journal
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.routes_changes import change_frames
from shoal.surfaces.http.streams import OPENING, LiveStreams

TURN_ENDED = Event(1, ThreadId("web:lobby:one"), TurnId("t1"), SystemClock().now(), TurnFinished("done"))


class Lists:
    def __init__(self) -> None:
        self.hub = Hub()
        options = WebOptions(token="t", streams_max=4, heartbeat_seconds=60, slow_reader_seconds=60)
        self.streams = LiveStreams(options, cast("Journal", None), self.hub, SystemClock())
        self.titles, self.approvals = ["one"], list[str]()
        self.reads = 0
        self.is_away = False

    async def read_titles(self) -> object:
        if self.is_away:
            raise StoreUnavailable("gone")
        self.reads += 1
        return self.titles

    async def read_approvals(self) -> object:
        return self.approvals

    async def named(self) -> AsyncIterator[bytes]:
        frames = change_frames(self.streams, {"threads": self.read_titles, "approvals": self.read_approvals})
        async with aclosing(frames):
            assert await anext(frames) == OPENING
            async for frame in frames:
                yield frame

    async def read_again(self) -> None:
        before = self.reads
        async with asyncio.timeout(60):
            while self.reads == before:
                self.hub.publish([TURN_ENDED])
                await asyncio.sleep(0)


async def test_only_the_list_that_changed_is_named() -> None:
    lists = Lists()
    frames = lists.named()
    assert await anext(frames) == b'data: {"changed":["threads","approvals"]}\n\n'
    following = asyncio.ensure_future(anext(frames))
    await lists.read_again()
    await lists.read_again()
    assert not following.done()  # only another person's list changed
    lists.approvals.append("A1")
    await lists.read_again()
    assert await following == b'data: {"changed":["approvals"]}\n\n'


async def test_the_stream_of_changes_ends_when_the_server_stops_or_the_database_is_away() -> None:
    lists = Lists()
    frames = lists.named()
    await anext(frames)
    following = asyncio.ensure_future(anext(frames))
    await lists.read_again()
    lists.streams.close()
    with pytest.raises(StopAsyncIteration):
        await following
    away = Lists()
    away.is_away = True
    with pytest.raises(StopAsyncIteration):
        await anext(away.named())
