"""Work that runs beside the turns of an agent, such as processes."""

from collections.abc import Sequence
from typing import Protocol


class Activity(Protocol):
    """One kind of it, listed in prompts and by `/tasks`. `title` heads its lines in a prompt."""

    @property
    def title(self) -> str: ...

    async def for_prompt(self, agent: str, within: str, limit: int) -> Sequence[str]:
        """Return at most `limit` lines for the agent's prompt, without words that an untrusted source chose.

        `within`: only what belongs to conversations whose ids begin so.
        """
        ...

    async def for_people(self, agent: str, within: str) -> Sequence[str]:
        """Return a line for each, for people who may see these conversations."""
        ...
