"""Run a GGUF file in this process with xllamacpp (extra `local`), behind its own loopback server.

The first call loads the model in a thread. One core stays free. If all cores are in use, the model's threads wait
for each other and run several times slower.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from importlib import import_module
from pathlib import Path
from types import ModuleType

from shoal.installation import how_to_add
from shoal.kernel.clock import Clock
from shoal.kernel.errors import ProviderDown
from shoal.kernel.messages import ModelEvent, ModelFailed, ModelInfo, ModelRequest
from shoal.kernel.secret import Secret
from shoal.models.embeddings import HttpEmbeddings
from shoal.models.http_provider import ApiKey, HttpProvider, ModelEndpoint
from shoal.models.model_table import LOCAL_CONTEXT_TOKENS
from shoal.models.openai import OpenAiChat
from shoal.net.http import HttpClient, make_client

EMBEDDED_TOKENS_MAX = 2_048
EMBEDDED_CHARS_MAX = 1_000
"""Maximum number of characters in a text to embed.

The server rejects a text that exceeds the model's window. Most small models have a window of 512 tokens, which is about
1,000 characters in most scripts.
"""


def threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


class LocalServer:
    """A server for one GGUF file. The first call starts the server and loads the model."""

    def __init__(
        self, provider: str, model_file: Path, timeout_seconds: float, clock: Clock, *, embeds: bool = False
    ) -> None:
        self.provider = provider
        self.file = model_file
        self.clock = clock
        self._timeout_seconds = timeout_seconds
        self._embeds = embeds
        self._loading = asyncio.Lock()
        self._server: object = None
        self._connection: tuple[HttpClient, ApiKey] | None = None

    def check(self) -> None:
        """Raise ProviderDown if the file or the library is missing."""
        _library()
        if not self.file.is_file():
            message = f"The file {self.file} does not exist. Set providers.{self.provider}.model_file to a GGUF file."
            raise ProviderDown(message)

    async def connection(self) -> tuple[HttpClient, ApiKey]:
        """Start the server if necessary, and return its connection and key. Raises ProviderDown."""
        async with self._loading:
            if self._connection is None:
                self.check()
                key = secrets.token_urlsafe(24)
                self._server, address = await asyncio.to_thread(_start_server, self.file, key, embeds=self._embeds)
                # Never use a proxy from the environment for this loopback connection.
                http = make_client(f"{address}/v1", self.provider, self._timeout_seconds, {})
                self._connection = http, ApiKey(Secret("value", key), self.provider, self.clock)
            return self._connection

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection[0].close()
        held, self._server = [self._server], None
        await asyncio.to_thread(held.clear)  # The server stops when its last reference is dropped.


class LocalProvider:
    """Implements `Provider` with one GGUF file. Ignores the requested model name."""

    def __init__(self, name: str, model_file: Path, timeout_seconds: float, clock: Clock) -> None:
        self.name = name
        self._server = LocalServer(name, model_file, timeout_seconds, clock)
        self._inner: HttpProvider | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        try:
            connection = await self._server.connection()
        except ProviderDown as error:
            yield ModelFailed("invalid_request", str(error))
            return
        if self._inner is None:
            self._inner = HttpProvider(self.name, OpenAiChat(), *connection, clock=self._server.clock)
        async with aclosing(self._inner.stream(request)) as events:
            async for event in events:
                yield event

    async def models(self) -> list[ModelInfo]:
        self._server.check()
        return [ModelInfo(self._server.file.stem, LOCAL_CONTEXT_TOKENS)]

    async def close(self) -> None:
        self._inner = None
        await self._server.close()


class LocalEmbeddings:
    def __init__(self, provider: str, model: str, model_file: Path, timeout_seconds: float, clock: Clock) -> None:
        self.name = f"{provider}/{model}"
        self._model = model
        self._server = LocalServer(provider, model_file, timeout_seconds, clock, embeds=True)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        server = self._server
        endpoint = ModelEndpoint(server.provider, self._model, *await server.connection(), server.clock)
        return await HttpEmbeddings(endpoint).embed([text[:EMBEDDED_CHARS_MAX] for text in texts])

    async def close(self) -> None:
        await self._server.close()


def _library() -> ModuleType:
    try:
        return import_module("xllamacpp")
    except ImportError as error:
        raise ProviderDown(f"Local models need the `local` extra. {how_to_add('local')}") from error


def _start_server(file: Path, key: str, *, embeds: bool = False) -> tuple[object, str]:
    library = _library()
    params = library.CommonParams()
    params.model.path = str(file)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads()
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.n_ctx = LOCAL_CONTEXT_TOKENS
    if embeds:  # An embedding server processes each text in a single batch.
        params.embedding = True
        params.n_ctx = params.n_batch = params.n_ubatch = EMBEDDED_TOKENS_MAX
    params.n_parallel = 1
    params.verbosity = -1
    params.ui = params.endpoint_slots = False
    try:
        server = library.Server(params)
    except RuntimeError as error:
        raise ProviderDown(f"Failed to load {file} as a GGUF model: {error}") from error
    return server, str(server.listening_address)
