"""Where a command works: the home directory, and what is opened from it when it is needed."""

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from shoal.config import Config
    from shoal.domain.home import Home
    from shoal.domain.store import Store
    from shoal.permissions.redact import Redactor

T = TypeVar("T")
NO_OVERRIDES: Mapping[str, object] = {}


class Place:
    """The home directory a command was pointed at."""

    def __init__(self, root: Path, *, debug: bool = False) -> None:
        self.root = root
        self.debug = debug
        self._config: Config | None = None
        self._redactor: Redactor | None = None

    @property
    def home(self) -> "Home":
        """The names of what lies in it."""
        from shoal.domain.home import Home

        return Home(self.root)

    def config(self, overrides: Mapping[str, object] = NO_OVERRIDES) -> "Config":
        """Read the configuration. Raises ConfigError with every problem."""
        from shoal.config import load_config

        self._config, self._redactor = load_config(self.root, os.environ, overrides), None
        return self._config

    def redactor(self) -> "Redactor":
        """What takes the secrets of the configuration that was read out of texts, those looked up later too."""
        from shoal.config.known import watch_secrets
        from shoal.permissions.redact import Redactor

        if self._redactor is None:
            self._redactor = Redactor()
            if self._config is not None:
                watch_secrets(self._config, self._redactor.learn_one)
        return self._redactor

    def guard(self) -> None:
        """Keep secrets out of the log of this process."""
        from shoal.permissions.redact import guard_logging

        guard_logging(self.redactor())

    def read(self, work: "Callable[[Store], Awaitable[T]]") -> T:
        """Do something with the database as it is, also while a server runs; nothing is changed.

        A home directory without a database reads as an empty one. Raises NotFound when there is no home directory,
        StoreError when the database cannot be read.
        """
        import asyncio
        import tempfile

        self._need_home()
        if url := self._server():
            return asyncio.run(self._work_on_server(work, url))
        if self.home.database_file.exists():
            return asyncio.run(self._work(work, self.home.database_file, read_only=True))
        with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
            return asyncio.run(self._work(work, Path(folder) / "empty.db", read_only=False))

    def write(self, work: "Callable[[Store], Awaitable[T]]", *, accept_loss: bool = False) -> T:
        """Do something that changes the database: SQLite while no other process works here, PostgreSQL at any time.

        `accept_loss` goes on without what its -wal file should hold and does not. Raises HomeLocked when one does,
        NotFound when there is no home directory, StoreError.
        """
        import asyncio

        from shoal.store.lock import HomeLock

        self._need_home()
        if url := self._server():
            return asyncio.run(self._work_on_server(work, url))
        lock = HomeLock(self.home.lock_file)
        lock.acquire()
        try:
            return asyncio.run(self._work(work, self.home.database_file, read_only=False, accept_loss=accept_loss))
        finally:
            lock.release()

    async def _work(
        self, work: "Callable[[Store], Awaitable[T]]", file: Path, *, read_only: bool, accept_loss: bool = False
    ) -> T:
        from shoal.domain.clock import SystemClock
        from shoal.store.sqlite import SqliteDriver
        from shoal.store.views import DatabaseStore

        store = DatabaseStore(SqliteDriver(file, read_only=read_only, accept_loss=accept_loss), SystemClock())
        try:
            return await work(store)
        finally:
            await store.close()

    async def _work_on_server(self, work: "Callable[[Store], Awaitable[T]]", url: str) -> T:
        from shoal.domain.clock import SystemClock
        from shoal.store.postgres import PoolSettings, open_postgres
        from shoal.store.views import DatabaseStore

        store = DatabaseStore(await open_postgres(url, PoolSettings(connections_max=2)), SystemClock())
        try:
            return await work(store)
        finally:
            await store.close()

    def _server(self) -> str:
        """The address of the PostgreSQL that holds everything, or nothing."""
        url = self.config().database.url
        return url.reveal() if url else ""

    def _need_home(self) -> None:
        from shoal.domain.errors import NotFound

        if not self.root.is_dir():
            raise NotFound(f"There is no home directory {self.root}. `shoal init` makes it; --home names another.")
