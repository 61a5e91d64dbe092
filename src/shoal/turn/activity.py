"""Work that runs alongside an agent's turns, such as background processes."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec


class Activity(msgspec.Struct, frozen=True, eq=False):
    """A kind of background work.

    `title` is the heading of its lines in prompts. `for_prompt(agent, within, limit)` returns at most `limit` lines for
    the agent's prompt, free of text that an untrusted source chose. `for_people(agent, within)` returns the lines that
    `/tasks` shows. Both return only the work of conversations whose ids begin with `within`.
    """

    title: str
    for_prompt: Callable[[str, str, int], Awaitable[Sequence[str]]]
    for_people: Callable[[str, str], Awaitable[Sequence[str]]]
