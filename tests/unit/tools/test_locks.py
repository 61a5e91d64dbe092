"""File locks: exclusive across threads and processes, a wait limit that is explained to the model, and no leftovers."""

import asyncio
from pathlib import Path

import pytest

from shoal.kernel.errors import ToolError
from shoal.tools import locks as locks_module
from shoal.tools.locks import FileLock, PathLocks, lock_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "f"
    found.write_text("as it was")
    return found


async def test_a_file_lock_has_one_holder(path: Path) -> None:
    locks, order = PathLocks(), list[str]()

    async def change(name: str) -> None:
        async with locks.hold(path, "f"):
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    await asyncio.gather(*(change(name) for name in "abc"))
    assert order == [f"{name} {step}" for name in "abc" for step in ("in", "out")]
    assert len(locks) == 0


async def test_locks_of_other_files_do_not_wait(path: Path, tmp_path: Path) -> None:
    locks, second = PathLocks(), tmp_path / "g"
    second.write_text("too")
    async with locks.hold(path, "f"), locks.hold(second, "g"):
        assert len(locks) == 2


async def test_a_lock_wait_times_out_with_an_explanation(path: Path) -> None:
    locks = PathLocks()
    async with locks.hold(path, "f"):
        with pytest.raises(ToolError, match=r"Another thread has been changing f .*changed nothing"):
            async with PathLocks(wait_seconds=0.01).hold(path, "f"):
                pytest.fail("held twice")
    async with locks.hold(path, "f"):
        assert len(locks) == 1


async def test_a_cancelled_lock_wait_leaves_nothing(path: Path) -> None:
    locks = PathLocks()

    async def wait() -> None:
        async with locks.hold(path, "f"):
            pytest.fail("held twice")

    async with asyncio.TaskGroup() as group, locks.hold(path, "f"):
        waiting = group.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        assert len(locks) == 1
    assert len(locks) == 0


async def test_the_number_of_locked_files_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "PATHS_MAX", 1)
    locks = PathLocks()
    async with locks.hold(path, "f"):
        with pytest.raises(ToolError, match="too many files"):
            async with locks.hold(Path("/g"), "g"):
                pytest.fail("beyond the bound")


def test_the_lock_of_a_replaced_file_does_not_lock_the_path(path: Path) -> None:
    first, second, third = FileLock(path), FileLock(path), FileLock(path)
    assert first.take()
    assert not second.take()
    path.with_name("new").write_text("as it is")
    path.with_name("new").rename(path)
    assert second.take()
    first.release()
    assert not third.take()
    second.release()
    assert third.take()
    third.release()


async def test_an_unlockable_path_does_not_block_its_writers(tmp_path: Path) -> None:
    tmp_path.joinpath("link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "link", Path("/dev/null")):
        async with PathLocks().hold(path, path.name), PathLocks().hold(path, path.name):
            pass


@pytest.mark.parametrize("steps", range(12))
async def test_a_lock_is_released_when_its_holder_is_cancelled(tmp_path: Path, steps: int) -> None:
    place = tmp_path / "made" / "x.lock"

    async def hold() -> None:
        async with lock_file(place):
            await asyncio.Event().wait()

    taker = asyncio.create_task(hold())
    for _ in range(steps):
        await asyncio.sleep(0)
    taker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taker
    async with asyncio.timeout(60), lock_file(place):
        other = FileLock(place)
        assert not other.take(), "it is held"
    assert other.take(), "and given back"
    other.release()
