"""The end of a thread, for good: its files go first, then all its rows in one transaction.

A crash in between leaves a thread without files, which can be deleted again; never files of a thread that is gone.
"""

import shutil
from pathlib import Path

from shoal.domain.errors import Conflict
from shoal.domain.files import Files, Folders, in_thread
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId
from shoal.domain.records import DeletedThread
from shoal.store.store import Store


async def delete_thread(
    store: Store, home: Home, artifacts: Files, folders: Folders, thread: ThreadId, by: str, token: str = ""
) -> DeletedThread:
    """Delete a thread and those of its subagents: journal, search index, files, whole results, saved conversations.

    `by` and `token` are for the audit log, which keeps the digest of the journal. Raises NotFound, Conflict while there
    is something to do or a file cannot be deleted, InvalidInput for a subagent's thread, StoreError.
    """
    await store.threads.check_rest(thread)
    tree = await store.threads.below(thread)
    for one in tree:
        unshared = [
            kept.digest
            for kept in await store.artifacts.of_thread(one)
            if not await store.threads.is_kept_elsewhere(kept.digest, tree)
        ]
        saved = [home.agent(agent) / "sessions" / f"{id}.json" for id, agent in await store.threads.snapshots(one)]
        try:
            for digest in unshared:
                await in_thread(lambda digest=digest: artifacts.remove(digest, at_once=True))
            await in_thread(lambda one=one, saved=saved: _empty(home.thread(one), saved))
            await folders.forget(one)
        except OSError as error:
            where = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise Conflict(
                f"A file of {one} cannot be deleted ({where}). Delete it by hand, then try again."
            ) from error
    deleted = await store.threads.delete(thread, by, token)
    for one in tree:  # and what the end of its last turn has written since
        await in_thread(lambda one=one: shutil.rmtree(home.thread(one), ignore_errors=True))
    return deleted


def _empty(folder: Path, others: list[Path]) -> None:
    """Delete what is in a folder, and these files; the folder stays, so that it counts as emptied and not as lost."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    for path in others:
        path.unlink(missing_ok=True)
