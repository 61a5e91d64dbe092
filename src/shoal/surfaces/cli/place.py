"""Where a command works: the home directory, and what is opened from it when it is needed."""

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from shoal.config import Config
    from shoal.domain.home import Home
    from shoal.domain.store import Store

T = TypeVar("T")
NO_OVERRIDES: Mapping[str, object] = {}


class Place:
    """The home directory a command was pointed at."""

    def __init__(self, root: Path, *, debug: bool = False) -> None:
        self.root = root
        self.debug = debug

    @property
    def home(self) -> "Home":
        """The names of what lies in it."""
        from shoal.domain.home import Home

        return Home(self.root)

    def config(self, overrides: Mapping[str, object] = NO_OVERRIDES) -> "Config":
        """Read the configuration. Raises ConfigError with every problem."""
        from shoal.config import load_config

        return load_config(self.root, os.environ, overrides)

    def read(self, work: "Callable[[Store], Awaitable[T]]") -> T:
        """Do something with the database as it is, also while a server runs; nothing is changed.

        Raises NotFound when there is no database yet, StoreError when it cannot be read.
        """
        import asyncio

        self._need_database()
        return asyncio.run(self._work(work, read_only=True))

    def write(self, work: "Callable[[Store], Awaitable[T]]") -> T:
        """Do something that changes the database, while no other process works here.

        Raises HomeLocked when one does, NotFound when there is no database yet, StoreError.
        """
        import asyncio

        from shoal.store.lock import HomeLock

        self._need_database()
        lock = HomeLock(self.home.lock_file)
        lock.acquire()
        try:
            return asyncio.run(self._work(work, read_only=False))
        finally:
            lock.release()

    async def _work(self, work: "Callable[[Store], Awaitable[T]]", *, read_only: bool) -> T:
        from shoal.domain.clock import SystemClock
        from shoal.store.sqlite import SqliteDriver
        from shoal.store.views import DatabaseStore

        store = DatabaseStore(SqliteDriver(self.home.database_file, read_only=read_only), SystemClock())
        try:
            return await work(store)
        finally:
            await store.close()

    def _need_database(self) -> None:
        from shoal.domain.errors import ConfigError, NotFound

        if self.config().database.url:
            raise ConfigError(
                ["database.url is set, and this version keeps its journals in SQLite only. Remove the key."]
            )
        if not self.home.database_file.exists():
            raise NotFound(f"{self.root} has no database yet. `shoal run`, `shoal chat` or `shoal ask` makes one.")
