"""Changes to the configuration, which are written and audited one at a time. Each error message is one sentence."""

import asyncio
import os
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated

import msgspec

from shoal.backend import Backend
from shoal.config import Config, load_config
from shoal.config.load import is_live
from shoal.kernel.errors import (
    ConfigError,
    Conflict,
    InvalidInput,
    KeyRefused,
    PlatformError,
    ProviderDown,
    ProviderError,
    ProviderRefused,
    ShoalError,
    ToolError,
    Unreachable,
)
from shoal.kernel.home import Home
from shoal.kernel.records import AuditEntry
from shoal.permissions.redact import Redactor
from shoal.services import Services
from shoal.setup.trying import plain
from shoal.setup.writing import write_with_secrets
from shoal.store.store import Store
from shoal.text.toml_edit import Value

CHAIN = "setup"
PUBLIC_URL = "web.public_url"
"""Key that is written together with an account whose platform calls this server. It takes effect for that account
immediately.
"""

Entered = Annotated[str, msgspec.Meta(max_length=4000)]
SettingName = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$", max_length=200, description="a dotted key in the table"),
]


class Changes:
    """Makes and audits every change. `by` is always a person, PLATFORM:USER."""

    def __init__(self, home: Home, store: Store, backend: Backend, redactor: Redactor) -> None:
        self._home = home
        self._store = store
        self._backend = backend
        self._redactor = redactor
        self._lock = asyncio.Lock()

    @classmethod
    def of(cls, services: Services) -> "Changes":
        return cls(services[Home], services[Store], services[Backend], services[Redactor])

    @asynccontextmanager
    async def changing(self, what: str, by: str) -> AsyncGenerator[None]:
        """Make one change in the block and audit it. Errors are converted as in `in_a_sentence`.

        Raises Conflict if several processes may each have their own shoal.toml.
        """
        if not self._backend.recovers:
            raise Conflict(
                "Several processes may use this PostgreSQL database, each with its own shoal.toml. Change all of "
                "these files and restart the processes."
            )
        async with self._lock:
            with self.in_a_sentence():
                yield
            await self._store.audit.record(CHAIN, [AuditEntry("setup", what, "done", user=by)])

    @contextmanager
    def in_a_sentence(self) -> Generator[None]:
        """Convert errors in the block to InvalidInput with a one-sentence message that contains no secrets.

        Provider errors become KeyRefused or Unreachable, which are subclasses of InvalidInput.
        """
        try:
            yield
        except OSError as error:
            raise InvalidInput(f"Shoal could not write the change: {error.strerror}.") from error
        except ShoalError as error:
            kinds: dict[type[ShoalError], type[InvalidInput]] = {
                ProviderRefused: KeyRefused,
                ProviderDown: Unreachable,
            }
            kind = kinds.get(type(error), InvalidInput)
            if type(error) is ShoalError or isinstance(error, PlatformError | ConfigError | ProviderError | ToolError):
                raise kind(self._redactor.redact(plain(error))) from error
            raise

    def loaded(self, values: Mapping[str, Value]) -> Config:
        """Return the configuration with these values applied, without writing it. Raises ConfigError."""
        return load_config(self._home.root, os.environ, values)

    async def write(self, values: Mapping[str, Value], secrets: Mapping[str, str]) -> Config:
        """Write keys to shoal.toml, and secrets to separate files. Return the resulting configuration.

        Raises ConfigError and OSError as `write_with_secrets` does. Nothing is changed in that case.
        """
        later = [key for key in (*values, *secrets) if not _takes_effect(key)]
        assert not later, f"{', '.join(later)} would take effect only at the next start"
        await asyncio.to_thread(write_with_secrets, self._home, values, secrets)
        return self.loaded({})


def _takes_effect(key: str) -> bool:
    """Return True if a change of the key takes effect immediately.

    Tables of accounts and providers always do, because they are replaced as a whole.
    """
    return key == PUBLIC_URL or key.startswith(("platforms.", "providers.")) or is_live(tuple(key.split(".")))
