"""Run the scripted model as a server. `python -m shoal.testing.model --port 0` prints its URL on one line."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from shoal.testing.model.fake import FakeModel, FakeSettings
from shoal.testing.model.script import Script
from shoal.testing.model.troubled import troubled


def parse(arguments: list[str]) -> tuple[str, int, FakeSettings, Script | None]:
    """Return the host, the port, the settings and the script. The script is None without `--log` and `--trouble`."""
    parser = argparse.ArgumentParser(prog="shoal.testing.model", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free port")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="delay before each answer")
    parser.add_argument("--token-ms", type=float, default=0.0, help="delay between the chunks of an answer")
    parser.add_argument("--chunks", type=int, default=8, help="chunks per text; 0 sends one chunk per word")
    parser.add_argument("--context-tokens", type=int, default=0, help="reject longer prompts; 0 accepts all")
    parser.add_argument("--key", default="", help="accept only this API key")
    parser.add_argument("--model", action="append", default=[], help="a model to list; repeatable")
    parser.add_argument("--strict", action="store_true", help="reject tool calls without results")
    parser.add_argument("--log", type=Path, help="append each request to this file as a line of JSON")
    parser.add_argument("--trouble", type=float, default=0.0, help="share of requests that fail at first, from 0 to 1")
    parser.add_argument("--seed", type=int, default=0, help="seed that selects the failing requests")
    options = parser.parse_args(arguments)
    settings = FakeSettings(
        latency_seconds=options.latency_ms / 1000,
        token_seconds=options.token_ms / 1000,
        chunks=options.chunks,
        context_tokens=options.context_tokens,
        strict=options.strict,
        api_key=options.key,
        models=tuple(options.model) or ("fake-1",),
        log_max=1,
    )
    script = troubled(options.trouble, options.seed, options.log) if options.log or options.trouble else None
    return options.host, options.port, settings, script


async def serve(host: str, port: int, settings: FakeSettings, script: Script | None = None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    model = FakeModel(script=script, settings=settings)
    url = await model.start(host, port)
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    await stopping.wait()
    await model.stop()


if __name__ == "__main__":
    asyncio.run(serve(*parse(sys.argv[1:])))
