"""The stored results of a thread as read-only files `/artifacts/NAME`, for commands and file tools.

The files are written only when a call names the folder. A tainted result is written in a taint span
(`tainted_files`), so reading the file taints the turn as `read_artifact` does.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from shoal.files.deep_folders import remove_tree
from shoal.kernel.files import Files, in_thread
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import ToolCall
from shoal.kernel.records import Artifact
from shoal.kernel.traits import Traits
from shoal.store.search import ArtifactStore
from shoal.tools.tainted_files import MarkedFiles

INSIDE = "/artifacts"
FILES_MAX = 200
"""Maximum number of results shown as files. The newest are shown."""
BYTES_MAX = 104_857_600
WRITE_SECONDS_MAX = 60.0


def names_artifacts(call: ToolCall, traits: Traits) -> bool:
    return (traits.takes_commands or traits.shows_file) and INSIDE[1:] in call.arguments


class ShownArtifacts:
    def __init__(self, artifacts: ArtifactStore, files: Files, marks: MarkedFiles) -> None:
        self._artifacts = artifacts
        self._files = files
        self._marks = marks
        self._lock = asyncio.Lock()

    async def show(self, thread: ThreadId, folder: Path) -> None:
        async with self._lock:
            wanted: dict[str, Artifact] = {}
            left_bytes = BYTES_MAX
            for row in await self._artifacts.of_thread(thread, FILES_MAX):
                if row.size_bytes <= left_bytes:
                    left_bytes -= row.size_bytes
                    wanted[row.digest] = row
            source_of = await self._marks.sources([folder])
            present = await in_thread(lambda: _tidied(folder, wanted))
            missing = [
                row
                for name, row in wanted.items()
                if name not in present or (row.tainted_by and not source_of(folder / name))
            ]
            for row in missing:
                if not row.tainted_by:
                    await in_thread(partial(self._write, folder, row.digest))
            tainted = [row for row in missing if row.tainted_by]
            if not tainted:
                return
            # Clean files that are written just before or after the tainted ones must stay outside the tainted time
            # span.
            apart_seconds = self._marks.clock.slack_ns / 1e9
            await asyncio.sleep(apart_seconds)
            for row in tainted:
                async with self._marks.during([folder], row.tainted_by, WRITE_SECONDS_MAX):
                    await in_thread(partial(self._write, folder, row.digest))
            await asyncio.sleep(apart_seconds)

    def _write(self, folder: Path, name: str) -> None:
        try:
            content = self._files.read(name)
        except OSError:
            return  # expired and deleted in the meantime
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(content)


def _tidied(folder: Path, wanted: Mapping[str, Artifact]) -> set[str]:
    """Delete everything except complete files of stored results, including files that commands created without a
    sandbox. Returns the names of the remaining files.
    """
    present = set[str]()
    for path in folder.iterdir():
        status = path.lstat()
        row = wanted.get(path.name)
        if row is not None and S_ISREG(status.st_mode) and status.st_size == row.size_bytes:
            present.add(path.name)
        elif S_ISDIR(status.st_mode):
            remove_tree(path)
        else:
            path.unlink()
    return present
