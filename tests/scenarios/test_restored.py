"""A home that is restored from a backup. Shoal does not repeat open work, which may have been done since."""

import os
from pathlib import Path

import pytest

from shoal.files.deep_folders import remove_tree
from shoal.kernel.clock import SystemClock
from shoal.kernel.ids import make_thread_id
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.posts import REPEATED
from shoal.kernel.records import NewPost
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.surfaces.cli.main import run
from shoal.testing.database import empty_database
from shoal.testing.model import FakeModel, Reply
from shoal.testing.scenario import scenario
from shoal.threads.actor import RESTORED

THREAD = make_thread_id("fake", "harbour", "1")
OTHER = make_thread_id("fake", "harbour", "2")


async def test_work_open_in_a_backup_does_not_run_again(tmp_path: Path) -> None:
    home, clock = tmp_path / "home", SystemClock()
    home.mkdir()
    driver = SqliteDriver(empty_database(home / "shoal.db"))
    store = Store(driver, clock)
    for text in ("pay the invoice", "pay the rent"):
        await store.inbox.accept(Prompt(THREAD, text, text, Author("ada", trusted=True), clock.now()), 10)
    await store.outbox.put(NewPost("said", OTHER, "The answer."))
    (home / "restored").write_text(clock.now().isoformat())
    await driver.close()
    model = FakeModel(Reply("Paid."))
    async with scenario(home, model) as world:
        await world.chat.sees(THREAD, "Send it again")
        await world.chat.sees(OTHER, REPEATED)
        assert model.calls == 0
        assert all(RESTORED in text for text in world.chat.texts(THREAD))
        await world.chat.says("harbour", "1", "pay the rent")
        await world.chat.sees(THREAD, "Paid.")


@pytest.mark.parametrize("content", ["", "soon", "\0" * 100, "9999-99-99T00:00:00"])
async def test_a_home_with_an_unreadable_restore_mark_counts_as_never_restored(tmp_path: Path, content: str) -> None:
    (tmp_path / "restored").write_text(content)
    async with scenario(tmp_path, FakeModel(Reply("Paid."))) as world:
        await world.chat.says("harbour", "1", "pay")
        await world.chat.sees(THREAD, "Paid.")


def test_files_with_overlong_restored_paths_are_skipped_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, fresh = tmp_path / "h", tmp_path / "a-home-with-a-longer-name"
    (home / "data").mkdir(parents=True)
    handle, length = os.open(home / "data", os.O_RDONLY), len(str(home / "data"))
    while length < 4090:  # almost PATH_MAX, so the paths in the home with the longer name exceed it
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle, length = inner, length + 2
    os.close(handle)
    assert run(["--home", str(home), "backup", str(tmp_path / "all.tar.gz")]) == 0
    assert run(["--home", str(home), "restore", str(tmp_path / "all.tar.gz"), "--into", str(fresh)]) == 0
    assert "because a path below" in "".join(capsys.readouterr())
    assert (fresh / "data" / "d" / "d").is_dir()
    assert not list(tmp_path.glob(".shoal-restore-*"))
    for top in (home, fresh):
        remove_tree(top)
