"""The two sides of a chat adapter in its contract: a platform's counterpart, and a recording inbox."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec
import pytest

from shoal.kernel.agents import Listen
from shoal.kernel.commands import CommandRequest, CommandTable
from shoal.kernel.errors import StoreError
from shoal.kernel.events import Scope
from shoal.kernel.home import Home
from shoal.kernel.ids import ApprovalId, CardId, ThreadId
from shoal.kernel.messages import Inbound, Prompt, Reaction, Receipt
from shoal.kernel.permissions import Asker
from shoal.kernel.ports import ChatAdapter
from shoal.kernel.posts import CHOOSING, OutboundPost
from shoal.testing.clock import ManualClock
from shoal.testing.platforms.fake import FakePlatform

WAIT_SECONDS = 20.0
"""Timeout of waits that must succeed. No result depends on it."""

Lack: TypeAlias = Literal[
    "people", "channels", "threads", "answers", "troubles", "weather", "connection", "files_in", "view", "edits",
    "deletions", "reactions", "bots", "bots_heard", "replies", "polls", "before", "greeting", "downloads",
]  # fmt: skip
LACKS: Mapping[Lack, str] = {
    "people": "messages come in by another way than the adapter",
    "channels": "nobody else is there",
    "threads": "its channels have no threads",
    "answers": "what is written there answers nothing but the thread it stands in",
    "troubles": "its posts cannot fail",
    "weather": "nothing lies between it and the platform",
    "connection": "it has no connection that could drop",
    "files_in": "it takes no files in",
    "view": "what is posted is seen elsewhere",
    "edits": "the platform does not tell bots of edits",
    "deletions": "the platform does not tell bots of deletions",
    "reactions": "the platform does not tell bots of reactions",
    "bots": "there are no other bots",
    "bots_heard": "what other bots write there does not reach it",
    "replies": "its messages name none that they answer",
    "polls": "it asks nobody for what comes in",
    "before": "whoever tells of a message tells what stood before it",
    "greeting": "bots are not told who added them, or join by themselves",
    "downloads": "files come with their messages",
}
"""Things that a platform may lack, with the reason for skipping a test."""
THREADS_ARE_OPEN = "a thread there takes posts as long as its room does"

Refers: TypeAlias = Literal["reply", "quote", "forward", "own"]
"""Ways in which a message can refer to another. `own` answers or quotes one of the bot's."""
Route: TypeAlias = Literal["reply", "forward", "before"]
"""Ways in which another person's file can arrive. `before` means before a mention in a channel."""
Kind: TypeAlias = Literal["sticker", "location", "contact", "poll", "video note", "animation", "picture", "unknown"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of messages without text or file. `unknown` is a kind that the platform may add later."""


Who: TypeAlias = Literal["ada", "bot", "itself", "stranger"]
"""Speakers: an allowed person, another bot, the adapter's own bot, a person who is not allowed."""


class Shown(msgspec.Struct):
    """A message as people see it.

    `text` has no markup, and `file` is a name and content. If the platform distinguishes them, files are shown as
    `image`, `voice` or `file`. `album` has further files.
    """

    id: str
    text: str
    buttons: tuple[str, ...] = ()
    file: tuple[str, bytes] | None = None
    reply_to: str = ""
    kind: str = ""
    album: tuple[tuple[str, bytes], ...] = ()


class MemorySettings:
    """In-memory settings. Every call fails while `broken`."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], str] = {}
        self.broken = False

    async def get(self, scope: str, key: str) -> str | None:
        """Return the stored value."""
        if self.broken:
            raise StoreError("The disk is gone.")
        return self.values.get((scope, key))

    async def put(self, scope: str, key: str, value: str) -> None:
        """Store a value."""
        self.values[scope, key] = value

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        """Store a value unless another was stored meanwhile."""
        if self.values.get((scope, key)) != expected:
            return False
        self.values[scope, key] = value
        return True

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        """Return the values by key."""
        rows = sorted(
            (key, value) for (scope_of_row, key), value in self.values.items() if scope_of_row == scope and key > after
        )
        return rows[:limit]

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        """Delete a value unless it was changed meanwhile."""
        return self.values.get((scope, key)) == expected and self.values.pop((scope, key)) == expected


A_co = TypeVar("A_co", bound=ChatAdapter, covariant=True)
P_co = TypeVar("P_co", bound=FakePlatform, covariant=True)


class Counterpart(Generic[A_co, P_co]):
    """The other side of an adapter in one test: a platform, its people, and the adapter's stored state.

    `thread` is an existing conversation in which ada may speak, and `other` another one. `stranger` is the id of a
    person whom the inbox does not admit. `refers`, `kinds` and `routes` are the ones that its bots receive. With
    `mixes`, a message can contain another person's words. `answered` lets ada answer one of the bot's messages, or is
    None if bots do not learn of answers. `order` is the order of events that the platform delivers out of order: as
    `written` if it numbers them, or as they `arrived`.
    """

    adapter: A_co
    thread: ThreadId
    other: ThreadId
    stranger: str = ""
    lacks: frozenset[Lack] = frozenset()
    refers: frozenset[Refers] = frozenset()
    mixes: bool = False
    kinds: frozenset[Kind] = frozenset()
    routes: frozenset[Route] = frozenset()
    order: Literal["written", "arrived"] = "arrived"

    def __init__(self, home: Path, server: P_co, clock: ManualClock) -> None:
        self.server = server
        self.clock = clock
        self.home = Home(home)
        self.kept = MemorySettings()

    def shown(self) -> Sequence[Shown]:
        """Return the messages in the conversation, oldest first."""
        raise NotImplementedError

    def told(self) -> Sequence[str]:
        """Return the texts that ada sees there, including those only for her."""
        return [post.text for post in self.shown()]

    async def says(self, text: str, *, author: Who = "ada") -> str:
        """Write as a person in the conversation. Return the platform's message id."""
        raise NotImplementedError

    async def in_channel(
        self, text: str, *, named: bool = False, inside: str = "", answers: str = "", author: Who = "ada"
    ) -> str:
        """Write as a person in a new channel with several people, and return the message's id.

        The message mentions the bot or not. It is in the thread of the message `inside`, or a reply to `answers`, one
        of the bot's.
        """
        raise NotImplementedError

    async def changes(self, message_id: str, text: str) -> None:
        """Edit a message as ada."""
        raise NotImplementedError

    async def deletes(self, message_id: str) -> None:
        """Delete a message as ada."""
        raise NotImplementedError

    async def reacts(self, message_id: str, emoji: str) -> None:
        """React to a message as ada."""
        raise NotImplementedError

    async def sends_file(self, name: str, content: bytes) -> None:
        """Send a file without text as ada."""
        raise NotImplementedError

    async def clicks(self, message_id: str, label: str) -> None:
        """Press a button as ada."""
        raise NotImplementedError

    async def refers_to(self, kind: Refers, said: str, text: str) -> None:
        """Write a message as the stranger, and refer to it or forward it as ada."""
        raise NotImplementedError

    async def mixed(self, text: str, message_id: str = "") -> None:
        """Forward a text as ada, or use it in her own message, so that her own words cannot be distinguished."""
        raise NotImplementedError

    async def brings(self, route: Route, name: str, content: bytes) -> None:
        """Send a file as the stranger. As ada, answer it with a question, forward it, or mention the bot after it."""
        raise NotImplementedError

    async def answers_bot(self, message_id: str, text: str) -> None:
        """Answer one of the bot's messages as ada."""
        raise NotImplementedError

    async def posts(self, text: str) -> str:
        """Post as the bot in the conversation. Return the message's id."""
        return await self.adapter.post(OutboundPost(self.thread, "said before", text))

    async def sends(self, kind: Kind) -> None:
        """Send a message without text or file as ada."""
        raise NotImplementedError

    async def adds(self, by: Literal["ada", "stranger"] = "ada") -> None:
        """Add the bot to a new place."""
        raise NotImplementedError

    def greeted(self) -> Sequence[str]:
        """Return the messages there since then."""
        raise NotImplementedError

    async def names_by_edit(self, message_id: str, text: str) -> None:
        """Edit a message of Ada's in the channel and mention the bot."""
        pytest.skip("bots are not told of a name that an edit adds there")

    async def resembles(self, text: str) -> None:
        """Write as Ada in the channel and mention a person whose name starts or ends like the bot's."""
        pytest.skip("the platform itself says who is named there")

    async def alerts(self, text: str) -> None:
        """Post a card without message text in the channel, from another app."""
        pytest.skip("other apps' cards do not reach bots there")

    async def seals(self, text: str) -> None:
        """Write a message as ada for which the adapter has no key until `hands_keys`."""
        pytest.skip("what bots are sent there is not encrypted")

    async def hands_keys(self) -> None:
        """Deliver the keys of ada's sealed messages."""
        raise NotImplementedError

    async def announces(self, text: str, *, named: bool = False) -> None:
        """Post anonymously in a channel where only administrators may post, mentioning the bot or not."""
        pytest.skip("every message in a channel has its author there")

    async def moves(self, *, in_other_order: bool = False) -> None:
        """Give the channel another id, which the platform reports twice. Then `in_channel` is at the new id."""
        pytest.skip("channels keep their ids there")

    async def bars(self, place: Literal["thread", "chat"], *, gone: bool = False) -> ThreadId:
        """Make a thread of a channel, or the whole channel, refuse posts. Returns the thread.

        With `gone`, it refuses them permanently. Skips the test if the platform has no such place.
        """
        pytest.skip("nothing there can keep the bot from posting")

    def around(self) -> Sequence[str]:
        """Return the bot's messages in the channel outside of that thread."""
        raise NotImplementedError

    def refuse(self, retry_after_seconds: float) -> None:
        """Refuse the next post or edit, with this retry delay."""
        self.server.troubles.append(("refuse", retry_after_seconds))

    def lose_answer(self) -> None:
        """Make the next post, but break the connection before the answer."""
        self.server.troubles.append(("lose", 0.0))


Peer: TypeAlias = Counterpart[ChatAdapter, FakePlatform]
"""Matches any of them."""


class Inbox:
    """An `InboxPort` that records its calls."""

    def __init__(self) -> None:
        self.came: list[Inbound | Reaction] = []
        self.decided: list[tuple[ApprovalId, bool, Asker, Scope]] = []
        self.decided_cards: list[tuple[CardId, bool, tuple[int, ...]]] = []
        self.chosen: list[tuple[CardId, tuple[int, ...]]] = []
        self.taken_back: list[str] = []
        self.undone: list[CardId] = []
        self.requests: list[CommandRequest] = []
        self.commands = CommandTable()
        self.threads: dict[str, ThreadId] = {}
        self.answer: Literal["accepted", "busy"] = "accepted"
        self.reacted = ""
        self.listen: Listen = "threads"
        self.pause_seconds = 0.0
        self.strangers: set[str] = set()
        self.suggested: Sequence[str] = ()
        self._changed = asyncio.Condition()

    async def send(self, message: Inbound) -> Receipt:
        """Record a message. Repeated keys are duplicates, commands run, and strangers' messages are dropped."""
        if isinstance(message, Prompt):
            if message.author.id in self.strangers:
                return Receipt("dropped")
            asked = self.commands.request(message)
            if asked is not None:
                return Receipt("answered", message.message_id, answer=await self.command(asked))
        keys = {prompt.key for prompt in self.came if isinstance(prompt, Prompt)}
        if isinstance(message, Prompt) and message.key in keys:
            return Receipt("duplicate")
        if self.answer == "accepted":
            self.came.append(message)
        await self._tell()
        return Receipt(self.answer if isinstance(message, Prompt) else "delivered")

    async def admits(self, message: Prompt) -> bool:
        """Whether the author is not in `strangers`."""
        return message.author.id not in self.strangers

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Record a decision."""
        self.decided.append((approval, allow, by, scope))
        await self._tell()
        return "allow" if allow else "deny"

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        """Record a decision on a card."""
        self.decided_cards.append((card, allow, tuple(numbers)))
        await self._tell()
        return "Allowed." if allow else "Denied."

    async def choose(self, card: CardId, ticked: Sequence[int], by: Asker) -> str:
        """Record a choice on a card."""
        self.chosen.append((card, tuple(ticked)))
        await self._tell()
        return CHOOSING

    async def always(
        self, asked: ApprovalId | CardId, by: Asker, numbers: Sequence[int] = (), *, or_thread: bool = False
    ) -> str:
        """Record an "always allow"."""
        self.decided.append((ApprovalId(asked), True, by, "always"))
        await self._tell()
        return "Always allowed."

    async def take_back(self, asked: str, by: Asker, thread: str = "") -> str:
        """Record the removal of a rule."""
        self.taken_back.append(asked)
        await self._tell()
        return "The rule is removed."

    async def undo_files(self, card: CardId, by: Asker) -> str:
        """Note it."""
        self.undone.append(card)
        await self._tell()
        return "Restored 1 file."

    async def listens(self, thread: ThreadId) -> Listen:
        """Return `listen`."""
        return self.listen

    async def react(self, reaction: Reaction) -> str:
        """Record a reaction. Return `reacted`."""
        self.came.append(reaction)
        await self._tell()
        return self.reacted

    async def command(self, asked: CommandRequest) -> str:
        """Record a command. Repeated keys are duplicates."""
        if any(request.key == asked.key for request in self.requests):
            return ""
        self.requests.append(asked)
        await self._tell()
        return f"Did /{asked.name}."

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        """Return `suggested`, but nothing for `strangers`."""
        return () if asked.author.id in self.strangers else self.suggested

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """Return the thread in `threads` of the message's id or key, or the thread of the prompt with this key."""
        went = next((prompt.thread for prompt in self.said() if key and prompt.key == key), None)
        return self.threads.get(message_id) or self.threads.get(key) or went

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition on this inbox's records is true."""
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(holds)

    async def prompts(self, count: int) -> list[Prompt]:
        """Wait for this many prompts and return them."""
        await self.until(lambda: len(self.said()) >= count)
        return self.said()

    def said(self) -> list[Prompt]:
        """Return the received prompts."""
        return [message for message in self.came if isinstance(message, Prompt)]

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def serving(adapter: ChatAdapter, inbox: Inbox) -> AsyncGenerator[asyncio.Task[None]]:
    """Run an adapter inside the block. Leaving cancels it and waits for its end."""
    task = asyncio.ensure_future(adapter.run(inbox))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or task.exception() is None


def needs(peer: Peer, *features: Lack) -> None:
    """Skip the test if the platform lacks one of these."""
    missing: list[Lack] = [feature for feature in features if feature in peer.lacks]
    if missing:
        pytest.skip(LACKS[missing[0]])


def post(peer: Peer, markdown: str, key: str = "k1", **fields: object) -> OutboundPost:
    """Return a post to the conversation."""
    return msgspec.structs.replace(OutboundPost(peer.thread, key, markdown), **fields)
