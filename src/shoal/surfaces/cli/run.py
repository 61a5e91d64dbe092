"""`shoal run`, `shoal serve` and `shoal worker`: the whole, or one half of it, until a signal ends it."""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import click

from shoal.domain.errors import ConfigError
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.app import App
    from shoal.backend import Role
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

    When it serves, it prints `ready http://HOST:PORT/?token=…` on a terminal; elsewhere `ready http://HOST:PORT/`, and
    on the next line where the token is. SIGTERM and Ctrl-C stop it: running turns get
    engine.drain_seconds, the rest goes on at the next start. A second signal stops it at once.
    """
    return asyncio.run(_run(place, _prepare(place, host, port), "all"))


@click.command()
@click.option("--host", help="Address to listen on; without it web.host.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on, 0 takes a free one; else web.port.")
@click.pass_obj
def serve(place: Place, host: str | None, port: int | None) -> int:
    """Run platforms, page, API and triggers; turns run in `shoal worker` processes on the same PostgreSQL.

    Any number of these may run; each platform account is served by one of them at a time.
    """
    return asyncio.run(_run(place, _shared(_prepare(place, host, port)), "serve"))


@click.command()
@click.option("--host", help="Address to listen on; without it web.host.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port for health, metrics and API; without it none is opened."
)
@click.option("--concurrency", type=click.IntRange(1), help="Threads to advance at once; else engine.concurrency.")
@click.pass_obj
def worker(place: Place, host: str | None, port: int | None, concurrency: int | None) -> int:
    """Run turns for `shoal serve` processes on the same PostgreSQL; any number of these may run."""
    config = _shared(_prepare(place, host, port, concurrency))
    return asyncio.run(_run(place, config, "worker", listens=port is not None))


def _prepare(place: Place, host: str | None, port: int | None, concurrency: int | None = None) -> "Config":
    from shoal.surfaces.cli.init import make_home
    from shoal.surfaces.cli.logs import start_logging

    given = {"web.host": host, "web.port": port, "engine.concurrency": concurrency}
    make_home(place.home)
    config = place.config({key: value for key, value in given.items() if value is not None})
    start_logging(config.logging.level, as_json=config.logging.json)
    place.guard()
    return config


def _shared(config: "Config") -> "Config":
    if not config.database.url:
        raise ConfigError(["database.url is empty: set it or DATABASE_URL to a PostgreSQL, or use `shoal run`."])
    return config


async def _run(place: Place, config: "Config", role: "Role", *, listens: bool = True) -> int:
    import anyio

    from shoal.app import open_app
    from shoal.upkeep import collect_seldom, discover_models

    with _Signals() as signals:
        async with AsyncExitStack() as stack:
            app = await stack.enter_async_context(open_app(config, role=role))
            ready = await _listen(place, app, stack) if listens else "ready"
            for line in start_up_lines(place, app):
                print(line, file=sys.stderr)
            collect_seldom(stays=True)
            print(ready, flush=True)
            async with anyio.create_task_group() as beside:
                beside.start_soon(discover_models, app.models, app.clock)
                await signals.wait()
                beside.cancel_scope.cancel()
            stop = await signals.wait()
            print(f"shoal: stopping; running turns get {config.engine.drain_seconds:g} s. Again stops at once.",
                  file=sys.stderr)  # fmt: skip
            await app.drain()
        return EXIT_INTERRUPTED if stop == signal.SIGINT else 0


async def _listen(place: Place, app: "App", stack: AsyncExitStack) -> str:
    from shoal.surfaces.http.server import serve as serve_web

    options = _web_options(place, app.config)
    address = await stack.enter_async_context(serve_web(app, options))
    app.backend.describe(address)
    if sys.stdout.isatty():
        return f"ready {address}/?token={options.token}"
    where = "web.token, as it is configured" if app.config.web.token.reveal() else place.home.token_file
    return f"ready {address}/\ntoken {where}"


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
        """The first signal; at once when it came already."""
        return await asyncio.shield(self._first)

    def _take(self, number: signal.Signals) -> None:
        if not self._first.done():
            self._first.set_result(number)
            return
        os._exit(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)


def _web_options(place: Place, config: "Config") -> "WebOptions":
    from shoal.factories import make_hooks
    from shoal.surfaces.http.core import WebOptions

    token = config.web.token.reveal() or place.home.token_file.read_text(encoding="utf-8").strip()
    if not token:
        raise ConfigError([f"{place.home.token_file} is empty. Delete it, and a new token is made at the next start."])
    return WebOptions(
        token=token,
        host=config.web.host,
        port=config.web.port,
        allowed_origins=config.web.allowed_origins,
        hooks=make_hooks(config),
    )


def start_up_lines(place: Place, app: "App") -> list[str]:
    """What is up, one line each, and last what the operator should know."""
    from shoal.agents.info import info_lines

    return [f"home      {place.root}", *info_lines(app.info())]
