"""The floor of the benchmarks. `python -m bench.floor TASK` sends recorded requests with a bare HTTP client and
reads the answers."""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx2
import msgspec

from bench.plan import Block, Measured

HEADERS = {"authorization": "Bearer sk-fake"}
LIMITS = httpx2.Limits(max_connections=1000, max_keepalive_connections=1000)


async def send(client: httpx2.AsyncClient, request: object) -> str:
    """Send a streamed request, and return the text of the answer and the names of the tools it calls."""
    parts: list[str] = []
    async with client.stream("POST", "/v1/chat/completions", json=request, headers=HEADERS) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line[6:])["choices"]:
                delta = choice["delta"]
                parts.append(delta.get("content") or "")
                parts.extend(call["function"].get("name", "") for call in delta.get("tool_calls", ()))
    return "".join(parts)


async def measure(url: str, plan: Sequence[Block], recorded: Sequence[Sequence[str]]) -> list[Measured]:
    """Send every block's requests, in as many concurrent chains as the block has threads."""
    found: list[Measured] = []
    async with httpx2.AsyncClient(base_url=url, limits=LIMITS, timeout=60) as client:
        for block, bodies in zip(plan, recorded, strict=True):
            chains = [[json.loads(body) for body in bodies[n :: block.threads]] for n in range(block.threads)]

            async def run(chain: list[object]) -> int:
                return sum([not await send(client, request) for request in chain])

            cpu, wall = time.process_time(), time.perf_counter()
            lost = sum(await asyncio.gather(*map(run, chains)))
            count = block.turns * block.threads
            found.append(
                Measured(
                    cpu_ms=(time.process_time() - cpu) * 1000 / count,
                    wall_ms=(time.perf_counter() - wall) * 1000 / block.turns,
                    lost=lost,
                )
            )
    return found


async def once(url: str) -> None:
    """Send one request from an otherwise idle process."""
    request = {"model": "fake-1", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    async with httpx2.AsyncClient(base_url=url) as client:
        print(await send(client, request))


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    if "requests" in task:
        kept = json.loads(Path(task["requests"]).read_text())
        blocks = [Block(*block) for block in task["plan"]]
        print(msgspec.json.encode(asyncio.run(measure(task["url"], blocks, kept))).decode())
    else:
        asyncio.run(once(task["url"]))
