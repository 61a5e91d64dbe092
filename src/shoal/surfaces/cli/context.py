"""The context of a command (its home directory, and resources that are opened on demand) and the decorator for
commands.
"""

import inspect
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from shoal.config import Config
    from shoal.kernel.home import Home
    from shoal.permissions.redact import Redactor
    from shoal.store.store import Store

T = TypeVar("T")
P = ParamSpec("P")
NO_OVERRIDES: Mapping[str, object] = {}


class CommandContext:
    """The home directory of a command, and access to its configuration and database."""

    def __init__(self, root: Path, *, debug: bool = False) -> None:
        self.root = root
        self.debug = debug
        self._config: Config | None = None
        self._redactor: Redactor | None = None

    @property
    def home(self) -> "Home":
        from shoal.kernel.home import Home

        return Home(self.root)

    @property
    def nearest(self) -> Path:
        """Return the home directory, or its nearest existing parent."""
        return next(path for path in (self.root, *self.root.parents) if path.exists())

    def config(self, overrides: Mapping[str, object] = NO_OVERRIDES) -> "Config":
        """Read the configuration. Raises a ConfigError that lists every problem."""
        from shoal.config import load_config

        self._config, self._redactor = load_config(self.root, os.environ, overrides), None
        return self._config

    def redactor(self) -> "Redactor":
        """Return the redactor for the configuration's secrets. Secrets that are resolved later are added to it."""
        from shoal.config.secrets import watch_secrets
        from shoal.permissions.redact import Redactor

        if self._redactor is None:
            self._redactor = Redactor()
            if self._config is not None:
                watch_secrets(self._config, self._redactor.learn)
        return self._redactor

    def guard(self) -> None:
        """Redact secrets in the log of this process."""
        from shoal.permissions.redact import guard_logging

        guard_logging(self.redactor())

    def read(self, work: "Callable[[Store], Awaitable[T]]") -> T:
        """Run `work` on the database, opened for reading. This changes nothing and works while a server runs.

        If the database does not exist, `work` gets an empty one. Raises NotFound if the home directory does not
        exist, and StoreError if the database is unreadable.
        """
        return _run(work, self._open_to_read)

    def write(self, work: "Callable[[Store], Awaitable[T]]", *, accept_loss: bool = False) -> T:
        """Run `work` on the database, opened for writing. Raises the errors of `open_store`."""
        return _run(work, partial(self.open_store, accept_loss=accept_loss))

    @asynccontextmanager
    async def open_store(self, *, accept_loss: bool = False) -> "AsyncGenerator[Store]":
        """Open the database for writing. With SQLite, no other process may use this home directory.

        With `accept_loss`, a -wal file that lacks data is not an error. Raises HomeLocked if another process uses
        this home directory, NotFound if it does not exist, and StoreError.
        """
        from shoal.store.lock import HomeLock

        if url := self._database_url():
            async with _opened(url) as store:
                yield store
            return
        lock = HomeLock(self.home.lock_file)
        lock.acquire()
        try:
            async with _opened("", self.home.database_file, accept_loss=accept_loss) as store:
                yield store
        finally:
            lock.release()

    def migrate(self, *, accept_loss: bool = False) -> None:
        async def opened(_: "Store") -> None: ...

        self.write(opened, accept_loss=accept_loss)

    @asynccontextmanager
    async def _open_to_read(self) -> "AsyncGenerator[Store]":
        import tempfile

        url, file = self._database_url(), self.home.database_file
        if url or file.exists():
            async with _opened(url, file, read_only=True) as store:
                yield store
            return
        with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
            async with _opened("", Path(folder) / "empty.db") as store:
                yield store

    def check_root(self) -> None:
        """Raise NotFound if the home directory does not exist or is not a directory."""
        from shoal.kernel.errors import NotFound

        if not self.nearest.is_dir():
            raise NotFound(f"{self.nearest} is not a directory. Choose another with --home DIR or SHOAL_HOME.")
        if not self.root.is_dir():
            raise NotFound(
                f"The home directory {self.root} does not exist. Create it with `shoal init`, or choose another "
                "with --home DIR."
            )

    def _database_url(self) -> str:
        self.check_root()
        url = self.config().database.url
        return url.reveal() if url else ""


@asynccontextmanager
async def _opened(
    url: str, file: Path = Path(), *, read_only: bool = False, accept_loss: bool = False
) -> "AsyncGenerator[Store]":
    from shoal.kernel.clock import SystemClock
    from shoal.store.store import Store

    if url:
        from shoal.store.postgres import PoolSettings, open_postgres

        store = Store(await open_postgres(url, PoolSettings(connections_max=2)), SystemClock())
    else:
        from shoal.store.sqlite import SqliteDriver

        store = Store(SqliteDriver(file, read_only=read_only, accept_loss=accept_loss), SystemClock())
    try:
        yield store
    finally:
        await store.close()


def _run(work: "Callable[[Store], Awaitable[T]]", opened: "Callable[[], AbstractAsyncContextManager[Store]]") -> T:
    import asyncio

    async def run() -> T:
        async with opened() as store:
            return await work(store)

    return asyncio.run(run())


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def command(
    group: click.Group | None = None, name: str | None = None, *, example: str, hidden: bool = False
) -> Callable[[Callable[Concatenate[CommandContext, P], int | None]], click.Command]:
    """Turn a typed function into a command, in `group` or on its own. The first argument of the function is the
    CommandContext.

    A parameter without a declared option or argument becomes an argument with the same name. A parameter `as_json`
    becomes the option `--json`. The help ends with `example`, a complete command line.
    """

    def make(function: Callable[Concatenate[CommandContext, P], int | None]) -> click.Command:
        made = click.command(name, hidden=hidden, epilog=f"Example: {example}")(click.pass_obj(function))
        _, *taken = inspect.signature(function).parameters.values()
        names = [parameter.name for parameter in taken if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        declared = {param.name for param in made.params}
        if "as_json" in names and "as_json" not in declared:
            made = json_option(made)
        arguments = [click.Argument([name]) for name in names if name != "as_json" and name not in declared]
        order = {name: place for place, name in enumerate(names)}
        made.params = sorted(
            [*arguments, *made.params],
            key=lambda argument: (
                order.get(argument.name or "", 0) if isinstance(argument, click.Argument) else len(names)
            ),
        )
        if group is not None:
            group.add_command(made)
        return made

    return make
