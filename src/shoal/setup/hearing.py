"""Identification of a bot's owner while Shoal is not running. Each person who writes to the bot receives a
different code.
"""

import asyncio
import secrets

import anyio

from shoal.kernel.errors import NotFound, PlatformError
from shoal.kernel.messages import Prompt
from shoal.kernel.posts import OutboundPost
from shoal.kernel.settings_platforms import AccountSettings
from shoal.permissions.access import code_digest, is_code, make_code
from shoal.platforms.account import ChatAccount
from shoal.setup.trying import SetupInbox

WRITE_SECONDS = 600.0
WRITERS_MAX = 100


class Hearing:
    """A connected account whose owner is not known yet. Other people who write first do not block the owner."""

    def __init__(self, adapter: ChatAccount[AccountSettings]) -> None:
        self._adapter = adapter
        self._codes: dict[str, Prompt] = {}
        self._writers: asyncio.Queue[Prompt | PlatformError] = asyncio.Queue()

    async def run(self, inbox: SetupInbox) -> None:
        """Send a code to each person who writes a direct message, once per person and to at most WRITERS_MAX people."""
        people = set[str]()
        while len(people) < WRITERS_MAX:
            prompt = await inbox.prompts.get()
            if prompt.author.id in people:
                continue
            people.add(prompt.author.id)
            code = make_code(secrets.token_bytes(16))
            self._codes[code] = prompt
            text = f"Your code is {code}. To become my owner, enter it where `shoal setup` is running."
            try:
                await self._adapter.post(OutboundPost(prompt.thread, f"setup:{code}", text))
                self._writers.put_nowait(prompt)
            except PlatformError as error:
                self._writers.put_nowait(error)

    async def first(self) -> Prompt:
        """Wait for the first message. Raises PlatformError if a code cannot be posted or no message arrives in time."""
        with anyio.move_on_after(WRITE_SECONDS):
            writer = await self._writers.get()
            if isinstance(writer, PlatformError):
                raise writer
            return writer
        raise PlatformError(f"Nobody wrote to the bot within {WRITE_SECONDS / 60:.0f} minutes.")

    def owner(self, typed: str) -> Prompt:
        """Return the message of the person who received this code. Letter case and separators do not matter.
        Raises NotFound.
        """
        for code, prompt in self._codes.items():
            if is_code(typed, code_digest(code)):
                return prompt
        raise NotFound(
            "This is not the code in the chat. If that chat is not yours, write to your bot to get your own code."
        )

    def thread_of(self, user: str) -> str:
        return next((prompt.thread for prompt in self._codes.values() if prompt.author.id == user), "")

    async def greet(self, prompt: Prompt) -> None:
        """Greet the new owner in the thread of their message. Raises PlatformError."""
        text = "You are now my owner. I answer here as soon as Shoal is running."
        await self._adapter.post(OutboundPost(prompt.thread, f"setup:{prompt.key}", text))
