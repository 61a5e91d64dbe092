"""A process that the chaos run kills, alone or in a cluster: `python -m tests.chaos.node ROLE …` serves until SIGTERM.

Its platforms are `tests.chaos.chat_server` processes, and its model is `python -m shoal.testing.model`. The options
contain their addresses. The tools `note` and `guarded` append a line to `WORLD/tools.jsonl` on each run, and
`guarded` needs approval. The file `WORLD/clock` contains the offset of the wall clock in seconds. The process prints
`ready` when it serves.
"""

import argparse
import asyncio
import fcntl
import logging
import os
import signal
import sys
from datetime import datetime, timedelta
from pathlib import Path

import anyio

from shoal.agents.lifecycle import AgentLifecycle
from shoal.agents.registry import AgentRegistry
from shoal.app import Overrides, open_app
from shoal.config import Config, load_config
from shoal.kernel.clock import SystemClock
from shoal.kernel.home import Home
from shoal.kernel.ids import format_ulid
from shoal.maintenance import collect_seldom, return_freed_memory, share_one_heap
from shoal.services import Services
from shoal.testing.chat import OPEN
from shoal.testing.crash import World, note_tool
from tests.chaos.chat_http import KEYLESS, HttpChat

TURN_TOKENS = 250_000
"""Token budget of a turn, many times the usual amount."""
CATCH_UP_SECONDS = 1_209_600
"""Longer than any clock error, so that every reminder runs."""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.chaos.node", description=__doc__)
    parser.add_argument("role", choices=("all", "serve", "worker"))
    parser.add_argument("--name", required=True, help="told to the model with each request")
    parser.add_argument("--home", required=True)
    parser.add_argument("--world", required=True)
    parser.add_argument("--database", default="", help="empty: SQLite in the home")
    parser.add_argument("--chat", required=True)
    parser.add_argument("--keyless", default="", help="a second platform, which ignores keys")
    parser.add_argument("--model", required=True)
    parser.add_argument("--agents", type=int, default=0, help="so many are made beside the default one")
    parser.add_argument("--context-tokens", type=int, default=0, help="the model's window; 0 leaves it unknown")
    parser.add_argument("--heartbeat-seconds", type=float, default=0.5)
    parser.add_argument("--stalled-seconds", type=float, default=2.0)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--pause-seconds", type=float, default=0.0, help="with 0 no lines are joined")
    return parser.parse_args(arguments)


def config_of(options: argparse.Namespace) -> Config:
    """Return the configuration of this process. No configuration file is needed."""
    provider = {
        "kind": "openai",
        "base_url": f"{options.model}/v1",
        "api_key": "sk-fake",
        "headers": {"x-node": options.name},
    }
    overrides: dict[str, object] = {
        "model": {"name": "fake/fake-1", "context_tokens_max": options.context_tokens},
        "providers": {"fake": provider},
        **({"database": {"url": options.database}} if options.database else {}),
        "sandbox": {"kind": "host"},
        "permissions": {
            "default_profile": "chaos",
            "profiles": {"chaos": {"extends": "open", "ask": ["tool:guarded:.*"]}},
        },
        "mailbox": {"pause_seconds": options.pause_seconds},
        "triggers": {"catch_up_seconds": CATCH_UP_SECONDS},
        "context": {"window_hours": 0},
        "budget": {"tokens_per_turn": TURN_TOKENS},
        "turns": {"steps_max": 100},
        "engine": {
            "heartbeat_seconds": options.heartbeat_seconds,
            "stalled_seconds": options.stalled_seconds,
            "concurrency": options.concurrency,
            "drain_seconds": 5.0,
        },
    }
    return load_config(Path(options.home), {}, overrides)


class OffsetClock(SystemClock):
    """The machine's clock plus the offset in a file, in seconds. Without the file, the offset is 0."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def now(self) -> datetime:
        seconds = float(self._file.read_text() or 0) if self._file.exists() else 0.0
        return super().now() + timedelta(seconds=seconds)

    def new_id(self) -> str:
        """Return a new ULID for the shifted time."""
        return format_ulid(int(self.now().timestamp() * 1000), os.urandom(10))


async def make_agents(app: Services, lock: Path, count: int) -> None:
    """Create missing agents. A file lock lets only one process do so at a time."""
    with lock.open("w") as file:
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
        for name in (f"crew-{number}" for number in range(count)):
            if not app[AgentRegistry].exists(name):
                await app[AgentLifecycle].create(name, {}, "chaos")


async def live(options: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    world = World(Path(options.world))
    clock = OffsetClock(Path(options.world) / "clock")
    home = Home(Path(options.home))
    chats = [HttpChat(options.chat, clock, home=home)]
    if options.keyless:
        chats.append(HttpChat(options.keyless, clock, platform="keyless", limits=KEYLESS, home=home))
    tools = note_tool(world), note_tool(world, "guarded")
    parts = Overrides(clock=clock, adapters=tuple(chats), access={chat.platform: OPEN for chat in chats}, tools=tools)
    async with open_app(config_of(options), parts, options.role) as app, anyio.create_task_group() as background:
        if options.role != "worker":
            await make_agents(app, Path(options.world) / "agents.lock", options.agents)
        collect_seldom()
        background.start_soon(return_freed_memory, SystemClock())
        for chat in chats:
            chat.opened.set()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await stopping.wait()
        background.cancel_scope.cancel()
    for chat in chats:
        await chat.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    share_one_heap()
    asyncio.run(live(parse(sys.argv[1:])))
