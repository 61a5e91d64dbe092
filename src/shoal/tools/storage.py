"""Opens what [files] names: where content is kept, and the directories that follow the work."""

import asyncio

from shoal.domain.checkpoints import CheckpointsSettings
from shoal.domain.errors import StoreUnavailable
from shoal.domain.files import STILL_FOLDERS, Files, Folders
from shoal.domain.home import Home
from shoal.domain.ports import Settings
from shoal.domain.settings import FilesSettings
from shoal.store.files import LocalFiles
from shoal.tools.checkpoints import Checkpoints
from shoal.tools.tainted_files import MarkedFiles


async def open_files(settings: FilesSettings, home: Home) -> Files:
    """[files]: content by digest, in the home directory or an S3-compatible store.

    Raises StoreUnavailable when that store does not take anything.
    """
    files = await asyncio.to_thread(files_of, settings, home)
    try:
        if settings.url:
            await asyncio.to_thread(files.keep, b"")
    except OSError as error:
        raise StoreUnavailable(f"{settings.url} cannot be used: {error}") from error
    return files


def files_of(settings: FilesSettings, home: Home) -> Files:
    """The same without a trial. Blocking."""
    if not settings.url:
        return LocalFiles(home.data)
    from shoal.store.s3 import S3Files, S3Settings

    return S3Files(S3Settings.of(settings, settings.url))


def open_checkpoints(settings: CheckpointsSettings, files: Files, home: Home, marks: MarkedFiles) -> Checkpoints:
    """[checkpoints], kept where everything else is that goes by its digest."""
    return Checkpoints(files.below("checkpoints"), home, marks, settings)


def open_folders(wanted: FilesSettings, files: Files, settings: Settings, home: Home, marks: MarkedFiles) -> Folders:
    """Whether directories follow their work through the store, or are the same on every machine."""
    if not wanted.url or not wanted.workspace_sync:
        return STILL_FOLDERS
    from shoal.tools.workspaces import SyncedFolders

    return SyncedFolders(files.below("folders"), settings, home, marks)
