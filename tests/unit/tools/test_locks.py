"""Locks of files: one at a time, a limit with an error the model understands, and nothing kept."""

import asyncio
from pathlib import Path

import pytest

from shoal.domain.errors import ToolError
from shoal.tools import locks as locks_module
from shoal.tools.locks import PathLocks

PATH = Path("/anywhere/f")


async def test_a_file_is_held_by_one_at_a_time() -> None:
    locks, order = PathLocks(), list[str]()

    async def change(name: str) -> None:
        async with locks.hold(PATH, "f"):
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    await asyncio.gather(*(change(name) for name in "abc"))
    assert order == [f"{name} {step}" for name in "abc" for step in ("in", "out")]
    assert len(locks) == 0


async def test_other_files_do_not_wait() -> None:
    locks = PathLocks()
    async with locks.hold(PATH, "f"), locks.hold(Path("/anywhere/g"), "g"):
        assert len(locks) == 2


async def test_waiting_has_an_end_that_is_explained() -> None:
    locks = PathLocks(wait_seconds=0.01)
    async with locks.hold(PATH, "f"):
        with pytest.raises(ToolError, match=r"Another thread has been changing f .*Nothing was changed"):
            async with locks.hold(PATH, "f"):
                pytest.fail("held twice")
    async with locks.hold(PATH, "f"):
        assert len(locks) == 1


async def test_a_cancelled_wait_leaves_nothing() -> None:
    locks = PathLocks()

    async def wait() -> None:
        async with locks.hold(PATH, "f"):
            pytest.fail("held twice")

    async with asyncio.TaskGroup() as group, locks.hold(PATH, "f"):
        waiting = group.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        assert len(locks) == 1
    assert len(locks) == 0


async def test_the_number_of_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "PATHS_MAX", 1)
    locks = PathLocks()
    async with locks.hold(PATH, "f"):
        with pytest.raises(ToolError, match="Too many files"):
            async with locks.hold(Path("/g"), "g"):
                pytest.fail("beyond the bound")
