"""Batches of writes under failures, cancellation and full disks: exactly the confirmed work is stored."""

import asyncio
import sqlite3
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kernel.errors import Conflict, InvalidInput, StoreError, StoreFull
from shoal.store.driver import Script, query, text
from shoal.store.sqlite import SqliteDriver, connect

Ending: TypeAlias = Literal["well", "refused", "known", "unstorable", "broken"]
BIG = "x" * 60_000
TROUBLES = (Conflict, InvalidInput, StoreError, ZeroDivisionError)


class Work(NamedTuple):
    """A script that a caller submits.

    key: the setting it extends.
    post: the post it enqueues.
    ending: how it ends.
    cancelled: the caller stops waiting.
    big: it also stores a large value.
    """

    key: str
    post: str
    ending: Ending
    cancelled: bool = False
    big: bool = False


class Rows(NamedTuple):
    values: dict[str, str]
    said: list[str]
    posts: list[str]


def script(number: int, work: Work) -> Script[tuple[str, bool]]:
    found = yield from query("setting_get", scope="s", key=work.key)
    before = text(found[0][0]) if found else ""
    if work.ending == "refused" and not before:
        raise Conflict("before anything was changed")
    yield from query("setting_put", scope="s", key=work.key, value=f"{before}.{number}")
    yield from query("search_insert", thread="web:lobby:t", seq=number, said=f"said {number}")
    fresh = yield from query("outbox_insert", id=work.post, platform="p", thread="t", payload=str(number), now=number)
    if work.ending == "refused":
        raise Conflict("after all of it")
    if work.ending == "known":
        yield from query("trigger_insert", id="known", spec="", next_at=None, now=0)
    if work.ending == "broken":
        raise ZeroDivisionError("a fault in the script")
    if work.ending == "unstorable":
        yield from query("setting_put", scope="s", key="half \ud800", value="v")
    if work.big:
        yield from query("setting_put", scope="big", key=str(number), value=BIG)
    return before, bool(fresh)


class Model:
    """The expected effect of running the scripts one after another."""

    def __init__(self) -> None:
        self.rows = Rows({}, [], [])

    def run(self, number: int, work: Work) -> tuple[str, bool]:
        before, fresh = self.rows.values.get(work.key, ""), work.post not in self.rows.posts
        self.rows.values[work.key] = f"{before}.{number}"
        self.rows.said.append(f"said {number}")
        if fresh:
            self.rows.posts.append(work.post)
        return before, fresh


def rows_of(path: Path) -> Rows:
    with closing(sqlite3.connect(path)) as connection:
        values = dict(connection.execute("select key, value from settings where scope = 's'").fetchall())
        connection.execute("create virtual table temp.found using fts5vocab (main, search_words, instance)")
        words = "select doc, term from found where col = 'words' order by doc, offset"
        said = [
            str(row[0]) for row in connection.execute(f"select group_concat(term, ' ') from ({words}) group by doc")
        ]
        posts = [str(row[0]) for row in connection.execute("select id from outbox order by number").fetchall()]
        connection.execute("insert into search_words (search_words, rank) values ('integrity-check', 0)")
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    return Rows(values, said, posts)


async def handed_in(path: Path, batches: Sequence[Sequence[Work]], room_pages: int = 0) -> list[object]:
    """Submit each batch in its own iteration of the event loop, close the driver immediately, and return the outcomes.

    With `room_pages`, the database can grow by at most that many pages.
    """
    known = query("trigger_insert", id="known", spec="", next_at=None, now=0)
    with pytest.MonkeyPatch.context() as patch:
        if room_pages:

            def cramped(database: str) -> sqlite3.Connection:
                connection = connect(database)
                pages = connection.execute("pragma page_count").fetchone()[0]
                connection.execute(f"pragma max_page_count = {pages + room_pages}")
                return connection

            first = SqliteDriver(path, synchronous="OFF")
            await first.write(known)
            await first.close()
            patch.setattr("shoal.store.sqlite.connect", cramped)
        driver = SqliteDriver(path, synchronous="OFF")
    if not room_pages:
        await driver.write(known)
    tasks: list[asyncio.Task[tuple[str, bool]]] = []
    for batch in batches:
        begun = len(tasks)
        tasks += [asyncio.create_task(driver.write(script(begun + index, work))) for index, work in enumerate(batch)]
        await asyncio.sleep(0)
        for task, work in zip(tasks[begun:], batch, strict=True):
            if work.cancelled:
                task.cancel()
    ended = asyncio.gather(*tasks, return_exceptions=True)
    await driver.close()
    return list(await ended)


def works(*, cancelled: bool, big: bool) -> st.SearchStrategy[list[list[Work]]]:
    one = st.builds(
        Work,
        key=st.sampled_from("abc"),
        post=st.sampled_from("uvwxyz"),
        ending=st.sampled_from(["well", "well", "well", "refused", "known", "unstorable", "broken"]),
        cancelled=st.booleans() if cancelled else st.just(value=False),
        big=st.booleans() if big else st.just(value=False),
    )
    return st.lists(st.lists(one, max_size=12), max_size=5)


@settings(max_examples=60, deadline=None)
@given(works(cancelled=True, big=False))
def test_failing_scripts_leave_nothing_and_others_act_as_if_alone(batches: list[list[Work]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, model = Path(folder) / "shoal.db", Model()
        outcomes = asyncio.run(handed_in(path, batches))
        for number, (work, outcome) in enumerate(zip(chain(*batches), outcomes, strict=True)):
            expected = model.run(number, work) if work.ending == "well" else None
            if work.cancelled:
                assert isinstance(outcome, asyncio.CancelledError)
            elif expected is None:
                assert isinstance(outcome, TROUBLES)
            else:
                assert outcome == expected
        assert rows_of(path) == model.rows


@settings(max_examples=40, deadline=None)
@given(works(cancelled=False, big=True), st.integers(1, 60))
def test_on_a_full_disk_exactly_the_confirmed_writes_exist(batches: list[list[Work]], room_pages: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, model = Path(folder) / "shoal.db", Model()
        outcomes = asyncio.run(handed_in(path, batches, room_pages))
        for number, (work, outcome) in enumerate(zip(chain(*batches), outcomes, strict=True)):
            if work.ending != "well":
                assert isinstance(outcome, TROUBLES)
            elif not isinstance(outcome, StoreFull):
                assert outcome == model.run(number, work)
        assert rows_of(path) == model.rows


async def test_a_rejected_batch_is_freed_without_garbage_collection(tmp_path: Path) -> None:
    """The error's traceback references the batch, and the caller may keep the error."""
    driver = SqliteDriver(tmp_path / "shoal.db", synchronous="OFF")
    try:
        await driver.write(script(1, Work("a", "u", "refused")))
        raise AssertionError
    except Conflict as error:
        watch = weakref.ref(error)
    await driver.write(script(2, Work("a", "u", "well")))
    assert watch() is None
    await driver.close()
