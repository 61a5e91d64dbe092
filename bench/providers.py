"""CPU time of a streamed model call: Shoal's adapters against a bare HTTP client on the same scripted server.

python -m bench.providers [REQUESTS]
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import httpx2

from shoal.kernel.clock import SystemClock
from shoal.kernel.messages import AssistantMessage, ModelDone, ModelRequest, ToolSpec, UserMessage
from shoal.kernel.ports import Provider
from shoal.kernel.secret import Secret
from shoal.kernel.settings import ProviderSettings
from shoal.models.catalog import build_provider

PATHS = {
    "openai": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/m:streamGenerateContent?alt=sse",
}
ROUNDS = 6
SYSTEM = "You are a careful agent. " * 200
TOOLS = tuple(ToolSpec(f"tool{number}", "Does something. " * 4, '{"type":"object"}') for number in range(8))


@contextmanager
def scripted(*arguments: str) -> Generator[str]:
    """Run the scripted model in its own process, and yield its URL."""
    command = [sys.executable, "-m", "shoal.testing.model", "--chunks", "20", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


async def cpu_ms(call: Callable[[], Awaitable[None]], count: int) -> float:
    """Return this process's CPU milliseconds per call."""
    began = time.process_time()
    for _ in range(count):
        await call()
    return (time.process_time() - began) / count * 1000


def history(turns: int) -> tuple[UserMessage | AssistantMessage, ...]:
    """Return a conversation of `turns` turns, followed by a question."""
    said: list[UserMessage | AssistantMessage] = []
    for number in range(turns):
        said += [UserMessage(f"message {number} " + "word " * 20), AssistantMessage("answer " * 20)]
    return (*said, UserMessage("words=40 id=x"))


def ours(provider: Provider, request: ModelRequest) -> Callable[[], Awaitable[None]]:
    """Return a call through Shoal's adapter."""

    async def call() -> None:
        last = [event async for event in provider.stream(request)][-1]
        assert isinstance(last, ModelDone), last

    return call


def bare(client: httpx2.AsyncClient, url: str, body: bytes) -> Callable[[], Awaitable[None]]:
    """Return a call through the bare client, which does not parse the stream."""
    headers = {"authorization": "Bearer key", "content-type": "application/json"}

    async def call() -> None:
        async with client.stream("POST", url, content=body, headers=headers) as response:
            async for _ in response.aiter_bytes():
                pass

    return call


async def compare(url: str, kind: str, turns: int, requests: int) -> tuple[float, float]:
    """Return the CPU milliseconds of the bare client and of Shoal, each the fastest of several alternating rounds."""
    base = url if kind == "anthropic" else f"{url}{PATHS[kind][:7] if kind == 'gemini' else '/v1'}"
    settings = ProviderSettings(kind=kind, base_url=base, api_key=Secret("value", "key"))
    provider = build_provider("bench", settings, SystemClock(), {})
    request = ModelRequest("m", SYSTEM, history(turns), TOOLS, cache_key="thread")
    body = b'{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"words=40 id=x"}],'
    body += b'"input":"words=40 id=x","contents":[{"parts":[{"text":"words=40 id=x"}]}],"padding":"%b"}'
    async with httpx2.AsyncClient() as client:
        plain, full = bare(client, url + PATHS[kind], body % (b"x" * 160 * turns)), ours(provider, request)
        await cpu_ms(plain, 5)
        await cpu_ms(full, 5)
        rounds = [(await cpu_ms(plain, requests), await cpu_ms(full, requests)) for _ in range(ROUNDS)]
    await provider.close()
    return min(one for one, _ in rounds), min(two for _, two in rounds)


async def main(requests: int) -> None:
    for words, arguments in (("chunks in one segment", ()), ("one segment each", ("--token-ms", "0.5"))):
        with scripted(*arguments) as url:
            for kind in PATHS:
                plain, full = await compare(url, kind, 10, requests)
                print(f"{words:22} {kind:17} bare {plain:.2f} ms  ours {full:.2f} ms  {full / plain:.2f}")
    with scripted() as url:
        for turns in (10, 100, 500):
            plain, full = await compare(url, "openai", turns, requests)
            words = f"history of {turns} turns"
            print(f"{words:22} {'openai':17} bare {plain:.2f} ms  ours {full:.2f} ms  {full / plain:.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
