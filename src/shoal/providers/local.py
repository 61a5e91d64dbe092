"""A model in this process: any GGUF file, run by xllamacpp (extra `local`) behind its own loopback server.

Loading waits for the first call and happens in a thread. One core is left to everything else: on all cores at once the
model is several times slower, since its threads wait for each other.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol

from shoal.domain.clock import Clock
from shoal.domain.errors import ProviderDown
from shoal.domain.messages import ModelEvent, ModelFailed, ModelInfo, ModelRequest
from shoal.providers.http import Timeouts, make_client
from shoal.providers.keys import Key, KeySource
from shoal.providers.openai import OpenAiWire
from shoal.providers.service import HttpProvider, Keys
from shoal.providers.table import LOCAL_CONTEXT_TOKENS


class _Server(Protocol):
    @property
    def listening_address(self) -> str: ...


class _Threads(Protocol):
    n_threads: int


class _ModelPath(Protocol):
    path: str


class _Params(Protocol):
    model: _ModelPath
    cpuparams: _Threads
    cpuparams_batch: _Threads
    hostnames: list[str]
    port: int
    api_keys: list[str]
    n_ctx: int
    n_parallel: int
    verbosity: int
    model_alias: set[str]
    ui: bool
    endpoint_slots: bool


class _Library(NamedTuple):
    new_params: Callable[[], _Params]
    start: Callable[[_Params], _Server]


def threads() -> int:
    """How many threads the model gets: the cores this process may use but one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


class LocalProvider:
    """The Provider over one GGUF file; what model a request names does not matter."""

    def __init__(
        self, name: str, model_file: str, *, clock: Clock, timeouts: Timeouts, environ: Mapping[str, str]
    ) -> None:
        self._name = name
        self._file = Path(model_file).expanduser()
        self._clock = clock
        self._timeouts = timeouts
        self._environ = environ
        self._loading = asyncio.Lock()
        self._server: _Server | None = None
        self._inner: HttpProvider | None = None

    @property
    def name(self) -> str:
        """See the port."""
        return self._name

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See the port. The first call loads the model."""
        try:
            inner = await self._load()
        except ProviderDown as error:
            yield ModelFailed("invalid_request", str(error))
            return
        async with aclosing(inner.stream(request)) as events:
            async for event in events:
                yield event

    async def models(self) -> list[ModelInfo]:
        """See the port. Checks the file and the library, without loading the model."""
        _library()
        if not self._file.is_file():
            raise ProviderDown(f"There is no file {self._file}. Set providers.{self._name}.model_file to a GGUF file.")
        return [ModelInfo(self._file.stem, LOCAL_CONTEXT_TOKENS)]

    async def close(self) -> None:
        """Unload the model."""
        inner, self._inner = self._inner, None
        if inner is not None:
            await inner.close()
        server, self._server = self._server, None
        if server is not None:
            held = [server]
            del server
            await asyncio.to_thread(held.clear)

    async def _load(self) -> HttpProvider:
        async with self._loading:
            if self._inner is None:
                await self.models()
                key = secrets.token_urlsafe(24)
                self._server = await asyncio.to_thread(_start, self._file, key)
                keys = Keys(Key(KeySource(key), self._name, self._environ, self._clock))
                # No proxy of the environment may stand between this process and itself.
                http = make_client(f"{self._server.listening_address}/v1", self._name, self._timeouts, {})
                self._inner = HttpProvider(self._name, OpenAiWire(), http, keys, clock=self._clock)
            return self._inner


def _library() -> _Library:
    try:
        found = vars(import_module("xllamacpp"))
    except ImportError as error:
        raise ProviderDown("Local models need the extra `local`: install `shoal[local]`.") from error
    return _Library(found["CommonParams"], found["Server"])


def _start(file: Path, key: str) -> _Server:
    library = _library()
    params = library.new_params()
    params.model.path = str(file)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads()
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.n_ctx = LOCAL_CONTEXT_TOKENS
    params.n_parallel = 1
    params.verbosity = -1
    params.ui = params.endpoint_slots = False
    try:
        return library.start(params)
    except RuntimeError as error:
        raise ProviderDown(f"{file} cannot be loaded as a GGUF model: {error}") from error
