"""Open the configured file stores, apply retention, and delete threads."""

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec

from shoal.files.deep_folders import remove_tree
from shoal.kernel.checkpoints import CheckpointsSettings
from shoal.kernel.clock import Clock, sleep_till_steady
from shoal.kernel.errors import Conflict, StoreUnavailable
from shoal.kernel.files import STILL_FOLDERS, Files, Folders, in_thread
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.ports import Settings
from shoal.kernel.records import DeletedThread
from shoal.kernel.settings import FilesSettings
from shoal.store.files import LocalFiles
from shoal.store.store import Store
from shoal.tools.checkpoints import Checkpoints
from shoal.tools.tainted_files import MarkedFiles

log = logging.getLogger(__name__)


async def open_files(settings: FilesSettings, home: Home) -> Files:
    """Open the store configured in [files], which is in the home directory or in an S3-compatible service.

    Raises StoreUnavailable if a test write to the service fails.
    """
    files = await asyncio.to_thread(files_of, settings, home)
    try:
        if settings.url:
            await asyncio.to_thread(files.keep, b"")
    except OSError as error:
        raise StoreUnavailable(f"Cannot use {settings.url}: {error}") from error
    return files


def files_of(settings: FilesSettings, home: Home) -> Files:
    if not settings.url:
        return LocalFiles(home.data)
    from shoal.store.s3 import S3Files, S3Settings

    return S3Files(S3Settings.of(settings, settings.url))


def open_checkpoints(settings: CheckpointsSettings, files: Files, home: Home, marks: MarkedFiles) -> Checkpoints:
    return Checkpoints(files.below("checkpoints"), home, marks, settings)


def open_folders(wanted: FilesSettings, files: Files, settings: Settings, home: Home, marks: MarkedFiles) -> Folders:
    if not wanted.url or not wanted.workspace_sync:
        return STILL_FOLDERS
    from shoal.tools.synced_folders import SyncedFolders

    return SyncedFolders(files.below("folders"), settings, home, marks)


# ---- retention ----

FIRST_SECONDS = 600.0
"""Seconds from startup to the first deletion of old artifacts and checkpoints. This leaves time to correct a wrong
clock.
"""
CHECK_SECONDS = 3600.0
CHECKS_A_DAY = 24


class Retention(msgspec.Struct, eq=False):
    """Deletes old artifacts, old checkpoints and unused taint spans.

    days: age at which artifacts are deleted. 0 means never.
    checkpoint_days: age at which checkpoints are deleted.

    If directories are synced, taint spans are never deleted, because the tainted files may be on another machine.
    """

    store: Store
    files: Files
    folders: Folders
    checkpoints: Checkpoints
    home: Home
    clock: Clock
    days: float
    checkpoint_days: float

    async def run(self) -> None:
        """Delete artifacts hourly, and checkpoints and taint spans daily, until cancelled."""
        marked = MarkedFiles(self.store.settings, self.home)
        while True:
            if self.folders is STILL_FOLDERS:
                await marked.forget_unused()
            await sleep_till_steady(self.clock, FIRST_SECONDS)
            await self.expire_checkpoints()
            for _ in range(CHECKS_A_DAY):
                await self.expire()
                await sleep_till_steady(self.clock, CHECK_SECONDS)

    async def expire(self) -> int:
        if not self.days:
            return 0
        expired = await self.store.artifacts.expire(self.clock.now() - timedelta(days=self.days))
        gone = 0
        for thread, digest in expired.forgotten:
            try:
                await in_thread(partial((self.home.shown_artifacts(thread) / digest).unlink, missing_ok=True))
            except OSError as error:
                log.warning(
                    "deleting artifact from conversation folder failed", extra={"digest": digest, "why": str(error)}
                )
        for digest in expired.unkept:
            try:
                gone += await in_thread(partial(self.files.remove, digest))
            except OSError as error:
                log.warning("deleting artifact failed", extra={"digest": digest, "why": str(error)})
        return gone

    async def expire_checkpoints(self) -> int:
        rows, gone = self.store.checkpoints, 0
        forgotten = {tree_id async for tree_id in rows.forget(self.clock.now() - timedelta(days=self.checkpoint_days))}
        # `known` includes workspaces whose threads were deleted.
        for workspace in forgotten | await in_thread(self.checkpoints.known):
            try:
                gone += await self.checkpoints.sweep(workspace, await rows.trees(workspace))
            except OSError as error:
                log.warning("deleting old checkpoints failed", extra={"folder": workspace, "why": str(error)})
        return gone


# ---- deleting a thread ----
# Files are deleted first, then all rows in one transaction. A crash in between leaves a thread without files, which can
# be deleted again, but never files without a thread.


async def delete_thread(
    store: Store, home: Home, artifacts: Files, folders: Folders, thread: ThreadId, by: str, token: str = ""
) -> DeletedThread:
    """Delete a thread and the threads of its subagents: journal, search index, files, stored results and saved
    conversations.

    `by` and `token` are recorded in the audit log, with the digest of the journal. Raises Conflict if a turn is
    running or a file cannot be deleted, InvalidInput for the thread of a subagent, NotFound, and StoreError.
    """
    await store.threads.check_rest(thread)
    tree = await store.threads.below(thread)
    for thread_id in tree:
        unshared = [
            artifact.digest
            for artifact in await store.artifacts.of_thread(thread_id)
            if not await store.threads.is_stored_elsewhere(artifact.digest, tree)
        ]
        saved = [
            home.agent(agent) / "sessions" / f"{id}.json" for id, agent in await store.threads.snapshots(thread_id)
        ]
        try:
            for digest in unshared:
                await in_thread(lambda digest=digest: artifacts.remove(digest, at_once=True))
            await in_thread(lambda thread_id=thread_id, saved=saved: _empty(home.thread(thread_id), saved))
            await folders.forget(thread_id)
        except OSError as error:
            where = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise Conflict(
                f"Shoal cannot delete a file of {thread_id} ({where}). Delete the file manually, then try again."
            ) from error
    deleted = await store.threads.delete(thread, by, token)
    for thread_id in tree:  # files may have been written at the end of the last turn
        with suppress(OSError):
            await in_thread(lambda thread_id=thread_id: remove_tree(home.thread(thread_id)))
    return deleted


def _empty(folder: Path, others: list[Path]) -> None:
    """Delete the content of a folder, and `others`. The folder remains, to show that it was emptied and not lost."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            entry.unlink()
    for path in others:
        path.unlink(missing_ok=True)
