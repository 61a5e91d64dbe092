"""Work that runs alongside an agent's turns, such as background processes."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec


class Activity(msgspec.Struct, frozen=True, eq=False):
    """A kind of background work.

    `for_prompt` and `for_people` cover only conversations whose ids begin with `within`.
    """

    title: str
    """Heading of the activity's lines in prompts."""
    for_prompt: Callable[[str, str, int], Awaitable[Sequence[str]]]
    """`(agent, within, limit)` returns at most `limit` lines for the agent's prompt, without text from untrusted
    sources."""
    for_people: Callable[[str, str], Awaitable[Sequence[str]]]
    """`(agent, within)` returns the lines for `/tasks`."""
