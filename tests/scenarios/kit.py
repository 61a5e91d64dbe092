"""Tools for scenarios: one blocks until the test continues, two fail, and one returns its input."""

import asyncio

from shoal.kernel.errors import ToolError
from shoal.kernel.ports import Tool
from shoal.kernel.traits import Traits
from shoal.testing.clock import in_time
from shoal.testing.model import Call, Reply
from shoal.tools.functions import tool

__all__ = ["in_time"]


class Door:
    """Provides a tool `wait` that sets `entered` and then blocks until the test sets `open`."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()
        self.left = 0

    def tool(self) -> Tool:
        @tool(Traits(origin="own"))
        async def wait() -> str:
            """Wait until the test continues."""
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
    """Raise an unexpected exception."""
    raise ZeroDivisionError("surprise")


@tool(Traits(origin="own"))
async def echo(text: str) -> str:
    """Return the text."""
    return text


def calls(*names: str, text: str = "", arguments: str = "{}") -> Reply:
    return Reply(text, calls=tuple(Call(name, arguments) for name in names))


def echoes(*texts: str) -> Reply:
    return Reply(calls=tuple(Call("echo", f'{{"text": "{text}"}}') for text in texts))
