"""Work that runs alongside an agent's turns, such as background processes."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec


class Activity(msgspec.Struct, frozen=True, eq=False):
    """A kind of such work. `title` is the heading of its lines in prompts.

    `for_prompt(agent, within, limit)` returns at most `limit` lines for the agent's prompt, without text that an
    untrusted source chose. `for_people(agent, within)` returns a line for each in `/tasks`, for people who may see
    these conversations. `within`: only work for conversations whose ids begin with it.
    """

    title: str
    for_prompt: Callable[[str, str, int], Awaitable[Sequence[str]]]
    for_people: Callable[[str, str], Awaitable[Sequence[str]]]
