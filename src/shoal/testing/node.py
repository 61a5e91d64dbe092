"""One process of a cluster that is to be killed: `python -m shoal.testing.node ROLE …` serves until SIGTERM.

Its platform is `shoal.testing.chat_server`, its model `python -m shoal.testing.model`; both by their address. Its tool
`note` leaves a line in `WORLD/tools.jsonl` each time it runs. Says `ready` when it serves.
"""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from shoal.app import App, Doubles, open_app
from shoal.config import Config, load_config
from shoal.testing.chat import OPEN
from shoal.testing.chat_http import HttpChat
from shoal.testing.crash import NoteTool, World


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="shoal.testing.node", description=__doc__)
    parser.add_argument("role", choices=("serve", "worker"))
    parser.add_argument("--name", required=True, help="told to the model with each request")
    parser.add_argument("--home", required=True)
    parser.add_argument("--world", required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--chat", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--heartbeat-seconds", type=float, default=0.5)
    parser.add_argument("--stalled-seconds", type=float, default=2.0)
    parser.add_argument("--concurrency", type=int, default=100)
    return parser.parse_args(arguments)


def config_of(options: argparse.Namespace) -> Config:
    """The configuration of this process; it has no file."""
    provider = {
        "kind": "openai",
        "base_url": f"{options.model}/v1",
        "api_key": "sk-fake",
        "headers": {"x-node": options.name},
    }
    overrides: dict[str, object] = {
        "model": {"name": "fake/fake-1"},
        "providers": {"fake": provider},
        "database": {"url": options.database},
        "sandbox": {"kind": "host"},
        "permissions": {"default_profile": "open"},
        "engine": {
            "heartbeat_seconds": options.heartbeat_seconds,
            "stalled_seconds": options.stalled_seconds,
            "concurrency": options.concurrency,
            "drain_seconds": 5.0,
        },
    }
    return load_config(Path(options.home), {}, overrides)


async def live(options: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    chat = HttpChat(options.chat)
    async with open_app(
        config_of(options), Doubles(adapters=(chat,), access={chat.platform: OPEN}), options.role
    ) as app:
        _add_tool(app, options.world)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await stopping.wait()
    await chat.close()


def _add_tool(app: App, world: str) -> None:
    app.tools.add(NoteTool(World(Path(world))))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(live(parse(sys.argv[1:])))
