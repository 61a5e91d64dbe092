"""The web page as a platform. Its posts are already in the journal, so only files are stored."""

from pathlib import Path

import pytest

from shoal.kernel.errors import PlatformError
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.posts import OutboundPost
from shoal.platforms.local import WebAdapter
from shoal.testing.clock import ManualClock

THREAD = ThreadId("web:lobby:one")


async def test_a_repeated_post_is_recognized_by_its_key_and_writes_nothing(tmp_path: Path) -> None:
    adapter = WebAdapter(Home(tmp_path))
    post = OutboundPost(THREAD, "t1:reply:0", "hello")
    assert [await adapter.post(post) for _ in range(2)] == ["t1:reply:0"] * 2
    assert list(tmp_path.iterdir()) == []


async def test_a_repeatedly_posted_file_is_stored_once(tmp_path: Path) -> None:
    adapter = WebAdapter(Home(tmp_path))
    file = tmp_path / "report.pdf"
    file.write_bytes(b"content")
    post = OutboundPost(THREAD, "p1:0", "", "file", file)
    for _ in range(2):
        await adapter.post(post)
    (kept,) = Home(tmp_path).attachments(THREAD).iterdir()
    assert kept.name == "p1%3A0-report.pdf"
    assert kept.read_bytes() == b"content"


async def test_a_missing_file_fails_the_post(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match=r"Copying .* failed") as caught:
        await WebAdapter(Home(tmp_path)).post(OutboundPost(THREAD, "p", "", "file", tmp_path / "none"))
    assert caught.value.permanent


async def test_a_link_is_not_followed_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(PlatformError):
        await WebAdapter(Home(tmp_path)).post(OutboundPost(THREAD, "p", "", "file", tmp_path / "link"))
    assert list(Home(tmp_path).attachments(THREAD).iterdir()) == []


async def test_a_channel_opens_a_fresh_thread() -> None:
    adapter = WebAdapter(clock=ManualClock())
    threads = {await adapter.open_thread("lobby", "hi") for _ in range(2)}
    assert len(threads) == 2
    assert all(thread.startswith("web:lobby:") for thread in threads)
