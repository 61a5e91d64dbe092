"""Restores of file trees in processes that are killed at a chosen step."""

import os
import signal
import sys
from pathlib import Path

import msgspec

from shoal.features.undo.restore import restore
from shoal.store.files import LocalFiles
from shoal.testing.crash import serve_forked
from shoal.tools.trees import Trees

WATCHED = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.chmod", "open"}


class Restoration(msgspec.Struct, frozen=True):
    """A workspace to restore from the tree `now` to the tree `then`.

    The process is killed before step `killed_at`, or never if it is 0.
    """

    root: str
    kept: str
    now: str
    then: str
    killed_at: int = 0


async def live(order: Restoration) -> int:
    steps = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal steps
        if event in WATCHED and not str(arguments[0]).startswith("/"):
            steps += 1
            if steps == order.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)

    trees = Trees(LocalFiles(Path(order.kept)))
    sys.addaudithook(watch)
    assert restore(Path(order.root), trees, order.now, order.then, "undo") == {}
    return steps


if __name__ == "__main__":
    serve_forked(Restoration, live)
