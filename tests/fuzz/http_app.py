"""The complete application behind its HTTP API, run in a thread for blocking clients such as schemathesis."""

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path

from shoal.app import open_app
from shoal.config import load_config
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve

TOKEN = "a-token-that-is-long-enough-to-be-unguessable"


class AppThread:
    """The application with the demo model, a new home and a free port. As a context manager, it yields its address."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))
        self._address = ""

    def __enter__(self) -> str:
        self._thread.start()
        self._ready.wait()
        assert self._address, "the app did not start"
        return self._address

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        settings = {"sandbox.kind": "host", "engine.drain_seconds": 1}
        try:
            async with AsyncExitStack() as stack:
                app = await stack.enter_async_context(open_app(load_config(self._home, {}, settings)))
                self._address = await stack.enter_async_context(serve(app, WebOptions(token=TOKEN, port=0)))
                self._ready.set()
                await self._stop.wait()
        finally:
            self._ready.set()
