"""`shoal run`: everything in one process, until a signal ends it."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import click

from shoal.domain.errors import ConfigError
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.app import App
    from shoal.config import Config
    from shoal.surfaces.http.core import WebOptions

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


@click.command()
@click.option("--host", help="Address to listen on; without it web.host.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on, 0 takes a free one; else web.port.")
@click.pass_obj
def run(place: Place, host: str | None, port: int | None) -> int:
    """Run agents, platforms, triggers, the page and the API in one process.

    Prints one line `ready http://HOST:PORT/?token=…` when it serves. SIGTERM and Ctrl-C stop it: running turns get
    engine.drain_seconds, the rest goes on at the next start. A second signal stops it at once.
    """
    from shoal.surfaces.cli.init import make_home
    from shoal.surfaces.cli.logs import start_logging

    given = {"web.host": host, "web.port": port}
    make_home(place.home)
    config = place.config({key: value for key, value in given.items() if value is not None})
    start_logging(config.logging.level, as_json=config.logging.json)
    return asyncio.run(_run(place, config))


async def _run(place: Place, config: "Config") -> int:
    from shoal.app import open_app
    from shoal.surfaces.http.server import serve

    with _Signals() as signals:
        async with AsyncExitStack() as stack:
            app = await stack.enter_async_context(open_app(config))
            options = _web_options(place, config)
            address = await stack.enter_async_context(serve(app, options))
            app.backend.describe(address)
            for line in start_up_lines(place, app):
                print(line, file=sys.stderr)
            print(f"ready {address}/?token={options.token}", flush=True)
            stop = await signals.wait()
            print(f"shoal: stopping; running turns get {config.engine.drain_seconds:g} s. Again stops at once.",
                  file=sys.stderr)  # fmt: skip
        return EXIT_INTERRUPTED if stop == signal.SIGINT else 0


class _Signals:
    """SIGINT and SIGTERM: the first is waited for, the second ends the process at once."""

    def __init__(self) -> None:
        self._first: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> "_Signals":
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._take, number)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    async def wait(self) -> signal.Signals:
        """The first signal."""
        return await self._first

    def _take(self, number: signal.Signals) -> None:
        if not self._first.done():
            self._first.set_result(number)
            return
        os._exit(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)


def _web_options(place: Place, config: "Config") -> "WebOptions":
    from shoal.surfaces.http.core import WebOptions

    token = config.web.token.reveal() or place.home.token_file.read_text(encoding="utf-8").strip()
    if not token:
        raise ConfigError([f"{place.home.token_file} is empty. Delete it, and a new token is made at the next start."])
    return WebOptions(
        token=token, host=config.web.host, port=config.web.port, allowed_origins=config.web.allowed_origins
    )


def start_up_lines(place: Place, app: "App") -> list[str]:
    """What is up, one line each, and last what the operator should know."""
    from shoal.config import default_model
    from shoal.surfaces.cli.skills import read_skills

    main = app.config.agents.default_agent
    skills = [skill.name for skill in read_skills(place, main, None).found]
    providers = ", ".join(app.config.providers) or "none set up"
    sandbox = app.sandbox.name if app.sandbox.isolated else f"{app.sandbox.name} (not isolated)"
    return [
        f"home      {place.root}",
        f"agents    {_listed(app.agents.names())}",
        f"tools     {_listed(app.tools.names())}",
        f"skills    {_listed(skills)}",
        f"model     {default_model(app.config)}; providers: {providers}",
        f"platforms {_listed(list(app.adapters))}",
        f"sandbox   {sandbox}",
        *(f"note      {note}" for note in app.notes),
    ]


def _listed(names: Sequence[str]) -> str:
    return f"{len(names)}: {', '.join(names)}" if names else "none"
