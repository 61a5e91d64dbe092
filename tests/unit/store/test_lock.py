"""Only one process uses a home directory at a time."""

from pathlib import Path

import pytest

from shoal.kernel.errors import HomeLocked
from shoal.store.lock import HomeLock, is_held


@pytest.mark.parametrize("is_removed", [False, True], ids=["", "whose lock file was removed"])
def test_a_home_in_use_is_refused(tmp_path: Path, *, is_removed: bool) -> None:
    path = tmp_path / "shoal.lock"
    first, second = HomeLock(path), HomeLock(path)
    first.acquire()
    if is_removed:
        path.unlink()
    with pytest.raises(HomeLocked, match="Shoal is already running in"):
        second.acquire()
    assert is_held(path)
    first.release()
    assert not is_held(path)
    second.acquire()
    second.release()
