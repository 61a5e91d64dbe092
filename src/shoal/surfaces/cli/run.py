"""`shoal run`, `serve` and `worker`: run Shoal in one process, or as servers and workers. Also formats the log on
stderr.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, TextIO, cast

import click
import msgspec

from shoal.kernel.clock import from_micros, iso
from shoal.kernel.errors import ConfigError
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import echo

if TYPE_CHECKING:
    from shoal.backend import Role
    from shoal.config import Config

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

host_option = click.option("--host", help="Address to listen on. [default: web.host]")
port_option = click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on. 0 chooses a free port. [default: web.port]"
)


@command(example="shoal run --port 9000")
@host_option
@port_option
def run(context: CommandContext, host: str | None, port: int | None) -> int:
    """Run agents, platforms, triggers, the page and the API in one process.

    When Shoal is ready, it prints "ready http://HOST:PORT/?token=…" on a terminal. If the output is not a terminal,
    it prints "ready http://HOST:PORT/" and a second line that says where the token is stored.

    SIGTERM and Ctrl-C stop Shoal. Running turns have engine.drain_seconds to finish, and unfinished turns continue
    at the next start. A second signal stops it immediately.
    """
    return asyncio.run(_run(context, _prepare(context, host, port), "all"))


@command(example="shoal serve --host 0.0.0.0 --port 8080")
@host_option
@port_option
def serve(context: CommandContext, host: str | None, port: int | None) -> int:
    """Run platforms, page, API and triggers. Turns run in 'shoal worker' processes on the same PostgreSQL database.

    You can run several servers. Each platform account is served by one of them at a time.
    """
    return asyncio.run(_run(context, _shared(_prepare(context, host, port)), "serve"))


@command(example="shoal worker --concurrency 50")
@host_option
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port for health checks, metrics and the API. [default: none]"
)
@click.option(
    "--concurrency", type=click.IntRange(1), help="Number of threads to run at once. [default: engine.concurrency]"
)
def worker(context: CommandContext, host: str | None, port: int | None, concurrency: int | None) -> int:
    """Run turns for 'shoal serve' processes on the same PostgreSQL database. You can run several workers."""
    config = _shared(_prepare(context, host, port, concurrency))
    return asyncio.run(_run(context, config, "worker", listens=port is not None))


def _prepare(context: CommandContext, host: str | None, port: int | None, concurrency: int | None = None) -> "Config":
    from shoal.surfaces.cli.init import make_home

    given = {"web.host": host, "web.port": port, "engine.concurrency": concurrency}
    make_home(context.home)
    config = context.config({key: value for key, value in given.items() if value is not None})
    start_logging(config.logging.level, as_json=config.logging.json)
    context.guard()
    return config


def _shared(config: "Config") -> "Config":
    if not config.database.url:
        raise ConfigError(
            ["database.url is empty. Set it or DATABASE_URL to the URL of a PostgreSQL database, or use `shoal run`."]
        )
    return config


async def _run(context: CommandContext, config: "Config", role: "Role", *, listens: bool = True) -> int:
    import anyio

    from shoal.agents.registry import info_lines
    from shoal.app import open_app
    from shoal.backend import Backend
    from shoal.config import default_model
    from shoal.config.secrets import read_token
    from shoal.installation import as_typed
    from shoal.kernel.clock import Clock
    from shoal.kernel.live_config import LiveConfig
    from shoal.kernel.ports import Models
    from shoal.maintenance import collect_seldom, discover_models, missing_model, return_freed_memory, share_one_heap
    from shoal.notices import Notices
    from shoal.permissions.redact import Redactor, guard_logging
    from shoal.running import Runtime, Status

    share_one_heap()
    with stop_signal() as stopped:
        async with AsyncExitStack() as stack:
            app = await stack.enter_async_context(open_app(config, role=role))
            guard_logging(app[Redactor])  # later setup steps add their secrets to this redactor
            ready = "ready"
            if listens:
                from shoal.surfaces.http.options import WebOptions
                from shoal.surfaces.http.server import serve as serve_web

                token = config.web.token.reveal() or read_token(context.home)
                options = WebOptions(
                    token=token,
                    host=config.web.host,
                    port=config.web.port,
                    allowed_origins=config.web.allowed_origins,
                    trusted_proxies=config.web.trusted_proxies,
                )
                address = await stack.enter_async_context(serve_web(app, options))
                app[Backend].describe(address)
                if sys.stdout.isatty():
                    ready = f"ready {address}/?token={token}"
                else:
                    where = "the configured web.token" if config.web.token.reveal() else context.home.token_file
                    ready = f"ready {address}/\ntoken {where}"
            default, models, clock = default_model(app[LiveConfig].current), app[Models], app[Clock]
            if lacking := missing_model(models, default):
                app[Notices].notes.append(as_typed(lacking))
            for line in (f"home      {context.root}", *info_lines(app[Status].info())):
                echo(line, sys.stderr)
            collect_seldom()
            print(ready, flush=True)
            async with anyio.create_task_group() as background:
                background.start_soon(discover_models, models, clock, default)
                background.start_soon(return_freed_memory, clock)
                await asyncio.shield(stopped)
                background.cancel_scope.cancel()
            print(f"shoal: stopping. Running turns have {config.engine.drain_seconds:g} s to finish. A second "
                  "signal stops Shoal immediately.",
                  file=sys.stderr)  # fmt: skip
            await app[Runtime].drain()
        return EXIT_INTERRUPTED if stopped.result() == signal.SIGINT else 0


@contextmanager
def stop_signal() -> Generator[asyncio.Future[signal.Signals]]:
    """Yield a future that the first SIGINT or SIGTERM resolves. The second signal ends the process immediately."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[signal.Signals] = loop.create_future()

    def take(number: signal.Signals) -> None:
        if first.done():
            os._exit(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)
        first.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, take, number)
    try:
        yield first
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


# ---- the log on stderr ----

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

QUIET = ("uvicorn", "httpx2", "httpcore2", "asyncio")
"""Packages whose log shows only warnings and errors."""
QUIETER = ("psycopg", "procrastinate")
"""Packages that log only errors. Their warnings about lost connections are hidden, because Shoal reports outages
itself.
"""


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which a terminal chat replaces to keep log lines away from its prompt."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # pyright: ignore[reportIncompatibleVariableOverride]
        return sys.stderr


class TextFormatter(logging.Formatter):
    """Formats one line per record: `TIME LEVEL logger: message key=value…`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname.lower():<7} {record.name}: {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line: time, level, logger, message, the record's own fields, and `trace` for an
    error.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def start_logging(level: str, *, as_json: bool = False) -> None:
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in QUIETER:
        logging.getLogger(name).setLevel(logging.ERROR)


def _time(record: logging.LogRecord) -> str:
    return iso(from_micros(int(record.created * 1_000_000)))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = cast("dict[str, object]", vars(record))
    return {name: value for name, value in fields.items() if name not in _STANDARD}
