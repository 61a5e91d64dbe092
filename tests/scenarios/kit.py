"""Tools for scenarios: one that waits for the test, one that fails, and one that returns its input."""

import asyncio

from shoal.kernel.errors import ToolError
from shoal.kernel.ports import Tool
from shoal.kernel.traits import Traits
from shoal.testing.clock import in_time
from shoal.testing.model import Call, Reply
from shoal.tools.functions import tool

__all__ = ["in_time"]


class Door:
    """A tool `wait` that blocks until `open` is set. `entered` is set when a call reaches it."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()
        self.left = 0

    def tool(self) -> Tool:
        @tool(Traits(origin="own"))
        async def wait() -> str:
            """Wait for somebody to open the door."""
            self.entered.set()
            await self.open.wait()
            self.left += 1
            return "went through"

        return wait


@tool(Traits(origin="own"))
async def fail(reason: str = "no") -> str:
    """Fail with a reason."""
    raise ToolError(f"failed: {reason}")


@tool(Traits(origin="own"))
async def crash() -> str:
    """Break in a way nobody foresaw."""
    raise ZeroDivisionError("surprise")


@tool(Traits(origin="own"))
async def echo(text: str) -> str:
    """Say it back."""
    return text


def calls(*names: str, text: str = "", arguments: str = "{}") -> Reply:
    """Return an assistant message that calls these tools."""
    return Reply(text, calls=tuple(Call(name, arguments) for name in names))


def echoes(*texts: str) -> Reply:
    """Return an assistant message that echoes each text."""
    return Reply(calls=tuple(Call("echo", f'{{"text": "{text}"}}') for text in texts))
