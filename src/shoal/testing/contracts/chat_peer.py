"""The two sides a chat adapter's contract puts it between: a platform's counterpart, and an inbox that writes down."""

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
"""How long a test waits for what has to come; it does not depend on it."""

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
"""What a platform may lack by its nature, as the reason why a case is left out there."""
THREADS_ARE_OPEN = "a thread there takes posts as long as its room does"

Refers: TypeAlias = Literal["reply", "quote", "forward", "own"]
"""How a message can refer to another one; `own`: it answers or quotes one of the bot's."""
Route: TypeAlias = Literal["reply", "forward", "before"]
"""The ways on which a file of somebody else comes along; `before`: it stands before a mention in a channel."""
Kind: TypeAlias = Literal["sticker", "location", "contact", "poll", "video note", "animation", "picture", "unknown"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""What people send that is neither words nor a file; `unknown` is what the platform begins to have tomorrow."""


Who: TypeAlias = Literal["ada", "bot", "itself", "stranger"]
"""Who speaks: somebody who may, another bot, the adapter's own, somebody who may not."""


class Shown(msgspec.Struct):
    """A message as people see it now: `text` without markup, `file` as name and content, and what it is shown as where
    the platform makes a difference: `image`, `voice`, `file`. `album` are further files of it."""

    id: str
    text: str
    buttons: tuple[str, ...] = ()
    file: tuple[str, bytes] | None = None
    reply_to: str = ""
    kind: str = ""
    album: tuple[tuple[str, bytes], ...] = ()


class MemorySettings:
    """Settings in memory; every call fails while `broken`."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], str] = {}
        self.broken = False

    async def get(self, scope: str, key: str) -> str | None:
        """What was put there."""
        if self.broken:
            raise StoreError("The disk is gone.")
        return self.values.get((scope, key))

    async def put(self, scope: str, key: str, value: str) -> None:
        """Put a value there."""
        self.values[scope, key] = value

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        """Put a value there unless somebody else did."""
        if self.values.get((scope, key)) != expected:
            return False
        self.values[scope, key] = value
        return True

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        """What is there, by key."""
        found = sorted((key, value) for (kept, key), value in self.values.items() if kept == scope and key > after)
        return found[:limit]

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        """Forget it unless somebody changed it."""
        return self.values.get((scope, key)) == expected and self.values.pop((scope, key)) == expected


A_co = TypeVar("A_co", bound=ChatAdapter, covariant=True)
P_co = TypeVar("P_co", bound=FakePlatform, covariant=True)


class Counterpart(Generic[A_co, P_co]):
    """The other side of an adapter for one test: a platform, its people, and what the adapter keeps.

    `thread` is a conversation that exists, in which ada may speak, and `other` another one. `stranger` is the id of
    somebody the inbox does not admit. `refers`, `kinds` and `routes` are what its bots are told of. `mixes`: words of
    somebody else can stand among those of a message. `answered` has ada answer one of the bot's messages; None where
    nobody is told of that. `order` is that in which events count that the
    platform delivers out of order: as they were `written`, where it numbers them, or as they `arrived`.
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
        """What stands in the conversation, oldest first."""
        raise NotImplementedError

    def told(self) -> Sequence[str]:
        """What ada sees there, what is for her eyes alone among it."""
        return [one.text for one in self.shown()]

    async def says(self, text: str, *, author: Who = "ada") -> str:
        """Somebody writes in the conversation; returns the platform's message id."""
        raise NotImplementedError

    async def in_channel(
        self, text: str, *, named: bool = False, inside: str = "", answers: str = "", author: Who = "ada"
    ) -> str:
        """Somebody writes in a channel of several people, where nobody was before: naming the bot or not, in the thread
        of the message `inside`, or to `answers`, one of the bot's. Returns the message's id."""
        raise NotImplementedError

    async def changes(self, message_id: str, text: str) -> None:
        """Ada edits what she wrote."""
        raise NotImplementedError

    async def deletes(self, message_id: str) -> None:
        """Ada deletes what she wrote."""
        raise NotImplementedError

    async def reacts(self, message_id: str, emoji: str) -> None:
        """Ada puts an emoji to a message."""
        raise NotImplementedError

    async def sends_file(self, name: str, content: bytes) -> None:
        """Ada sends a file without words."""
        raise NotImplementedError

    async def clicks(self, message_id: str, label: str) -> None:
        """Ada presses a button."""
        raise NotImplementedError

    async def refers_to(self, kind: Refers, said: str, text: str) -> None:
        """The stranger has said something; ada writes a text that refers to it, or passes it on without words."""
        raise NotImplementedError

    async def mixed(self, text: str, message_id: str = "") -> None:
        """Ada passes a text on, or makes it that of a message of hers, and what of it is hers cannot be told."""
        raise NotImplementedError

    async def brings(self, route: Route, name: str, content: bytes) -> None:
        """The stranger has sent a file without words; ada answers it with a question, passes it on, or names the bot
        after it."""
        raise NotImplementedError

    async def answers_bot(self, message_id: str, text: str) -> None:
        """Ada answers one of the bot's messages."""
        raise NotImplementedError

    async def posts(self, text: str) -> str:
        """The bot says something in the conversation; returns its id."""
        return await self.adapter.post(OutboundPost(self.thread, "said before", text))

    async def sends(self, kind: Kind) -> None:
        """Ada sends something that is neither words nor a file."""
        raise NotImplementedError

    async def adds(self, by: Literal["ada", "stranger"] = "ada") -> None:
        """Somebody adds the bot to a place where it was not before."""
        raise NotImplementedError

    def greeted(self) -> Sequence[str]:
        """What stands there since."""
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
        """Ada writes in the conversation what the adapter has no key for until `hands_keys`."""
        pytest.skip("what bots are sent there is not encrypted")

    async def hands_keys(self) -> None:
        """The keys of what ada has sealed arrive."""
        raise NotImplementedError

    async def announces(self, text: str, *, named: bool = False) -> None:
        """Somebody posts in a channel in which administrators alone may, naming the bot or not, and is not named."""
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
        """The next call that posts or edits is refused for so long."""
        self.server.troubles.append(("refuse", retry_after_seconds))

    def lose_answer(self) -> None:
        """The next post is made, and the connection breaks before the answer."""
        self.server.troubles.append(("lose", 0.0))


Peer: TypeAlias = Counterpart[ChatAdapter, FakePlatform]
"""Any of them."""


class Inbox:
    """An `InboxPort` that writes down what comes in."""

    def __init__(self) -> None:
        self.came: list[Inbound | Reaction] = []
        self.decided: list[tuple[ApprovalId, bool, Asker, Scope]] = []
        self.decided_cards: list[tuple[CardId, bool, tuple[int, ...]]] = []
        self.chosen: list[tuple[CardId, tuple[int, ...]]] = []
        self.taken_back: list[str] = []
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
        """Note it; the same key twice is a duplicate, a command is given, and strangers' are dropped."""
        if isinstance(message, Prompt):
            if message.author.id in self.strangers:
                return Receipt("dropped")
            asked = self.commands.request(message)
            if asked is not None:
                return Receipt("answered", message.message_id, answer=await self.command(asked))
        keys = {found.key for found in self.came if isinstance(found, Prompt)}
        if isinstance(message, Prompt) and message.key in keys:
            return Receipt("duplicate")
        if self.answer == "accepted":
            self.came.append(message)
        await self._tell()
        return Receipt(self.answer if isinstance(message, Prompt) else "delivered")

    async def admits(self, message: Prompt) -> bool:
        """Whether it is of nobody in `strangers`."""
        return message.author.id not in self.strangers

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Note it."""
        self.decided.append((approval, allow, by, scope))
        await self._tell()
        return "allow" if allow else "deny"

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        """Note it."""
        self.decided_cards.append((card, allow, tuple(numbers)))
        await self._tell()
        return "Allowed." if allow else "Denied."

    async def choose(self, card: CardId, ticked: Sequence[int], by: Asker) -> str:
        """Note it."""
        self.chosen.append((card, tuple(ticked)))
        await self._tell()
        return CHOOSING

    async def always(
        self, asked: ApprovalId | CardId, by: Asker, numbers: Sequence[int] = (), *, or_thread: bool = False
    ) -> str:
        """Note it."""
        self.decided.append((ApprovalId(asked), True, by, "always"))
        await self._tell()
        return "Always allowed."

    async def take_back(self, asked: str, by: Asker, thread: str = "") -> str:
        """Note it."""
        self.taken_back.append(asked)
        await self._tell()
        return "The rule is taken back."

    async def listens(self, thread: ThreadId) -> Listen:
        """What `listen` says."""
        return self.listen

    async def react(self, reaction: Reaction) -> str:
        """Note it; `reacted` is what is to be told."""
        self.came.append(reaction)
        await self._tell()
        return self.reacted

    async def command(self, asked: CommandRequest) -> str:
        """Note it; the same key twice is a duplicate."""
        if any(found.key == asked.key for found in self.requests):
            return ""
        self.requests.append(asked)
        await self._tell()
        return f"Did /{asked.name}."

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        """What `suggested` says, for nobody in `strangers`."""
        return () if asked.author.id in self.strangers else self.suggested

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """What `threads` says of the message's id, or its key; else where the prompt with this key went."""
        went = next((found.thread for found in self.said() if key and found.key == key), None)
        return self.threads.get(message_id) or self.threads.get(key) or went

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is so; what it looks at are this inbox's notes."""
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(holds)

    async def prompts(self, count: int) -> list[Prompt]:
        """Wait for so many prompts, and return them."""
        await self.until(lambda: len(self.said()) >= count)
        return self.said()

    def said(self) -> list[Prompt]:
        """The prompts that came."""
        return [message for message in self.came if isinstance(message, Prompt)]

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def serving(adapter: ChatAdapter, inbox: Inbox) -> AsyncGenerator[asyncio.Task[None]]:
    """Run an adapter while inside; leaving cancels it and waits until it has ended."""
    task = asyncio.ensure_future(adapter.run(inbox))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or task.exception() is None


def needs(peer: Peer, *features: Lack) -> None:
    """Skip the test where the platform lacks one of these."""
    missing: list[Lack] = [feature for feature in features if feature in peer.lacks]
    if missing:
        pytest.skip(LACKS[missing[0]])


def post(peer: Peer, markdown: str, key: str = "k1", **fields: object) -> OutboundPost:
    """A post to the conversation."""
    return msgspec.structs.replace(OutboundPost(peer.thread, key, markdown), **fields)
