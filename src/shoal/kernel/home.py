"""Paths in the home directory."""

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from shoal.kernel.ids import ThreadId
from shoal.kernel.regular_files import read_regular

RESTORED_BYTES_MAX = 64


class Home:
    """The layout of a home directory. See docs/contract.md."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config_file = root / "shoal.toml"
        database = root / "shoal.db"
        # Resolve links, because SQLite stores its other files next to the real database file.
        self.database_file = Path(os.path.realpath(database)) if database.is_symlink() else database
        self.lock_file = root / "shoal.lock"  # locked by the running process, whose name it contains
        self.token_file = root / "token"  # the HTTP token, mode 0600
        self.secrets = root / "secrets"  # one file per secret from `shoal setup`, mode 0600
        self.models_file = root / "available_models.json"
        self.quirks_file = root / "learned_quirks.json"  # learned from requests that models rejected
        self.restored_file = root / "restored"  # time of the last restore from a backup
        self.template = root / "template"
        self.data = root / "data"  # memory, skills, events and the threads' files
        self.events = self.data / "events"  # event files, which start turns
        self.artifacts = self.data / "artifacts"  # large results and attachments, by digest

    def make_folders(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.data.mkdir(exist_ok=True)
        with suppress(OSError):  # for example, a link to a disk that is not mounted
            self.events.mkdir(exist_ok=True)  # The first turn may already write a file there.

    def restored_at(self) -> datetime | None:
        try:
            return datetime.fromisoformat(read_regular(self.restored_file, RESTORED_BYTES_MAX).decode())
        except (OSError, ValueError):
            return None

    def agent(self, name: str) -> Path:
        return self.root / "agents" / name

    def platform(self, thread: ThreadId) -> Path:
        return self.data / thread.split(":")[0]

    def channel(self, thread: ThreadId) -> Path:
        return self.data.joinpath(*thread.split(":")[:2])

    def thread(self, thread: ThreadId) -> Path:
        """Return `data/{platform}/{channel}/{thread}/`. The parts of a thread id are safe as file names."""
        return self.data.joinpath(*thread.split(":"))

    def scratch(self, thread: ThreadId) -> Path:
        return self.thread(thread) / "scratch"

    def attachments(self, thread: ThreadId) -> Path:
        return self.thread(thread) / "attachments"

    def shown_artifacts(self, thread: ThreadId) -> Path:
        """Return the folder in which a thread's commands can read stored results."""
        return self.thread(thread) / "artifacts"

    def is_shown_artifact(self, path: Path) -> bool:
        parts = path.parts[len(self.data.parts) :]
        return len(parts) > 4 and parts[3] == "artifacts" and path.is_relative_to(self.data)
