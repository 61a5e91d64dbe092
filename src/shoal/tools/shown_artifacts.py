"""The stored results of a thread as files, for commands and file tools: `/artifacts/NAME`, read-only.

They are written when a call names the folder, and not before. One that is tainted is written within a span that marks
it (see `tainted_files`), so that whatever reads it is tainted as `read_artifact` is.
"""

import asyncio
from pathlib import Path

from shoal.domain.files import Files, in_thread
from shoal.domain.ids import ThreadId
from shoal.domain.messages import ToolCall
from shoal.domain.permissions import COMMAND_TOOLS, FILE_READERS
from shoal.store.search import ArtifactStore
from shoal.tools.tainted_files import MarkedFiles

INSIDE = "/artifacts"
FILES_MAX = 200
"""The newest results of a thread that are shown as files."""
BYTES_MAX = 104_857_600
"""The size of all of them together."""
WRITE_SECONDS_MAX = 60.0


def names_artifacts(call: ToolCall) -> bool:
    """Whether a call that can read files speaks of the folder, by its name inside or on the host."""
    return (call.name in COMMAND_TOOLS or call.name in FILE_READERS) and INSIDE[1:] in call.arguments


class ShownArtifacts:
    """Keeps a thread's folder of files as its stored results are."""

    def __init__(self, artifacts: ArtifactStore, files: Files, marks: MarkedFiles) -> None:
        self._artifacts = artifacts
        self._files = files
        self._marks = marks
        self._lock = asyncio.Lock()

    async def show(self, thread: ThreadId, folder: Path) -> None:
        """Write what is missing and remove what is kept no more. Raises StoreError, OSError."""
        async with self._lock:
            wanted: dict[str, str] = {}
            size_bytes = 0
            for row in await self._artifacts.of_thread(thread, FILES_MAX):
                size_bytes += row.size_bytes
                if size_bytes > BYTES_MAX:
                    break
                wanted[row.digest] = row.tainted_by
            source_of = await self._marks.sources([folder])
            present = await in_thread(lambda: {path.name: source_of(path) for path in folder.iterdir()})
            for name in present.keys() - wanted.keys():
                await in_thread((folder / name).unlink)
            missing = [name for name, by in wanted.items() if name not in present or (by and not present[name])]
            for name in [name for name in missing if not wanted[name]]:
                await in_thread(lambda name=name: self._write(folder, name))
            tainted = [name for name in missing if wanted[name]]
            if not tainted:
                return
            apart_seconds = self._marks.clock.slack_ns / 1e9  # else clean files would be in the span
            await asyncio.sleep(apart_seconds)
            for name in tainted:
                async with self._marks.during([folder], wanted[name], WRITE_SECONDS_MAX):
                    await in_thread(lambda name=name: self._write(folder, name))
            await asyncio.sleep(apart_seconds)

    def _write(self, folder: Path, name: str) -> None:
        try:
            content = self._files.read(name)
        except OSError:
            return  # it was too old to be kept
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(content)
