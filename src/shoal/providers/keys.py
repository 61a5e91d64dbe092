"""API keys, resolved at each call: a literal, a variable, a file, or what a command prints."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.errors import ProviderRefused

COMMAND_CACHE_SECONDS = 300.0
"""How long the output of a key command is used before it is run again; a 401 runs it again at once."""
COMMAND_TIMEOUT_SECONDS = 30.0
KEY_BYTES_MAX = 65_536


class KeySource(msgspec.Struct, frozen=True):
    """Where a key comes from; the first field that is set counts, none set means that no key is sent.

    `told` is called with each key that was looked up, before it is used.
    """

    value: str = ""
    env: str = ""
    file: str = ""
    command: tuple[str, ...] = ()
    told: Callable[[str], None] | None = None


class Key:
    """A key that is looked up when it is needed, so that a changed file or variable counts from the next call on."""

    def __init__(self, source: KeySource, provider: str, environ: Mapping[str, str], clock: Clock) -> None:
        self._source = source
        self._provider = provider
        self._environ = environ
        self._clock = clock
        self._cached = ""
        self._cached_until = 0.0
        self._lock = asyncio.Lock()

    @property
    def refreshable(self) -> bool:
        """Whether asking again after a 401 may give another key."""
        return bool(self._source.file or self._source.command)

    async def get(self) -> str:
        """The key, empty when none is configured. Raises ProviderRefused saying what is missing."""
        key = await self._look_up()
        if key and self._source.told is not None:
            self._source.told(key)
        return key

    async def _look_up(self) -> str:
        source = self._source
        if source.value:
            return source.value
        if source.env:
            return self._from_environment(source.env)
        if source.file:
            return self._from_file(Path(source.file).expanduser())
        return await self._from_command(source.command) if source.command else ""

    def forget(self) -> None:
        """Have the command run again at the next call."""
        self._cached_until = 0.0

    def _from_environment(self, name: str) -> str:
        key = self._environ.get(name, "").strip()
        if not key:
            raise ProviderRefused(f"The key of {self._provider} is to come from {name}, which is not set.")
        return key

    def _from_file(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                key = file.read(KEY_BYTES_MAX).decode("utf-8", "replace").strip()
        except OSError as error:
            raise ProviderRefused(f"The key file {path} of {self._provider}: {error.strerror}.") from error
        if not key:
            raise ProviderRefused(f"The key file {path} of {self._provider} is empty.")
        return key

    async def _from_command(self, command: tuple[str, ...]) -> str:
        async with self._lock:
            if self._clock.monotonic() >= self._cached_until:
                self._cached = await self._run(command)
                self._cached_until = self._clock.monotonic() + COMMAND_CACHE_SECONDS
            return self._cached

    async def _run(self, command: tuple[str, ...]) -> str:
        what = f"The key command {command[0]!r} of {self._provider}"
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            raise ProviderRefused(f"{what} cannot be run: {error.strerror}.") from error
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_SECONDS):
                output, _ = await process.communicate()
        except TimeoutError as error:
            raise ProviderRefused(f"{what} did not end within {COMMAND_TIMEOUT_SECONDS:.0f} s.") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        key = output[:KEY_BYTES_MAX].decode("utf-8", "replace").strip()
        if process.returncode or not key:
            raise ProviderRefused(f"{what} ended with exit code {process.returncode} and no key.")
        return key
