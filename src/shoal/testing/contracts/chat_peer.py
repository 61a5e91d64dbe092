"""The counterpart of a chat adapter in its contract tests, and an inbox that records calls."""

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
"""Timeout for waits that must succeed, in seconds. No result depends on it."""

Lack: TypeAlias = Literal[
    "people", "channels", "threads", "answers", "troubles", "weather", "connection", "files_in", "view", "edits",
    "deletions", "reactions", "bots", "bots_heard", "replies", "polls", "before", "greeting", "downloads",
]  # fmt: skip
LACKS: Mapping[Lack, str] = {
    "people": "the adapter does not receive people's messages",
    "channels": "the platform has no channels with several people",
    "threads": "the platform's channels have no threads",
    "answers": "the platform has no replies to single messages",
    "troubles": "posts cannot fail",
    "weather": "no network lies between the adapter and the platform",
    "connection": "the adapter has no connection that could drop",
    "files_in": "the adapter receives no files",
    "view": "the test cannot see the posts",
    "edits": "the platform does not report edits to bots",
    "deletions": "the platform does not report deletions to bots",
    "reactions": "the platform does not report reactions to bots",
    "bots": "the platform has no other bots",
    "bots_heard": "the platform does not deliver other bots' messages",
    "replies": "messages do not name the message they answer",
    "polls": "the adapter does not poll for events",
    "before": "the platform delivers no earlier messages",
    "greeting": "the platform does not report who added the bot",
    "downloads": "files arrive inside their messages",
}
"""Features that a platform or its fake may lack, each with the reason for skipping its tests."""
THREADS_ARE_OPEN = "a thread accepts posts as long as its channel does"

Refers: TypeAlias = Literal["reply", "quote", "forward", "own"]
"""Ways in which a message can refer to another. `own` is a reply to a message of the bot, or a quote of one."""
Route: TypeAlias = Literal["reply", "forward", "before"]
"""Ways in which another person's file can arrive. `before` is a file posted in a channel before a mention of the bot.
"""
Kind: TypeAlias = Literal["sticker", "location", "contact", "poll", "video note", "animation", "picture", "unknown"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of messages without text or file. `unknown` is a kind that the platform may add in the future."""


Who: TypeAlias = Literal["ada", "bot", "itself", "stranger"]
"""Authors: a person who may use the bot, another bot, the bot itself, and a person who may not use it."""


class Shown(msgspec.Struct):
    """A message as people see it.

    `text` has no markup. `file` and each item of `album` are a name and content. `kind` is `image`, `voice` or `file`
    if the platform shows them differently, otherwise empty.
    """

    id: str
    text: str
    buttons: tuple[str, ...] = ()
    file: tuple[str, bytes] | None = None
    reply_to: str = ""
    kind: str = ""
    album: tuple[tuple[str, bytes], ...] = ()


class MemorySettings:
    """Settings in memory. While `broken` is set, reads raise StoreError."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], str] = {}
        self.broken = False

    async def get(self, scope: str, key: str) -> str | None:
        if self.broken:
            raise StoreError("The disk failed.")
        return self.values.get((scope, key))

    async def put(self, scope: str, key: str, value: str) -> None:
        self.values[scope, key] = value

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        """Store a value if the current one equals `expected`. Returns whether it did."""
        if self.values.get((scope, key)) != expected:
            return False
        self.values[scope, key] = value
        return True

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        """Return up to `limit` keys and values of a scope after the key `after`, sorted by key."""
        rows = sorted(
            (key, value) for (scope_of_row, key), value in self.values.items() if scope_of_row == scope and key > after
        )
        return rows[:limit]

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        """Delete a value if it equals `expected`. Returns whether it did."""
        return self.values.get((scope, key)) == expected and self.values.pop((scope, key)) == expected


A_co = TypeVar("A_co", bound=ChatAdapter, covariant=True)
P_co = TypeVar("P_co", bound=FakePlatform, covariant=True)


class Counterpart(Generic[A_co, P_co]):
    """A platform, its people, and the adapter under test. Subclass it for your adapter.

    Set `adapter`, `thread` and `other`, and implement the methods that people's actions need. List missing features in
    `lacks`; methods of a feature in `lacks` are never called. Some methods skip their test by default; override them if
    the platform can do what they describe. `ada` is a person who may use the bot.

    - `thread`: an existing conversation with ada. `other` is a second one.
    - `stranger`: the id of a person who may not use the bot.
    - `refers`, `kinds`, `routes`: the references, messages and files that the platform delivers to bots.
    - `mixes`: whether a message can contain another person's text that the adapter cannot tell from ada's.
    - `order`: the order of events that arrive out of order: `written` if the platform numbers them, else `arrived`.
    - `kept`: the adapter's stored settings.
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
        """Return the messages in `thread`, oldest first."""
        raise NotImplementedError

    def told(self) -> Sequence[str]:
        """Return the texts that ada sees in `thread`, including those that only she sees."""
        return [post.text for post in self.shown()]

    async def says(self, text: str, *, author: Who = "ada") -> str:
        """Write a message in `thread` and return the platform's id of it."""
        raise NotImplementedError

    async def in_channel(
        self, text: str, *, named: bool = False, inside: str = "", answers: str = "", author: Who = "ada"
    ) -> str:
        """Write a message in a new channel with several people, and return the message's id.

        `named` mentions the bot. `inside` is the id of the message whose thread to write in. `answers` is the id of a
        message of the bot to reply to.
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
        """Click a button as ada."""
        raise NotImplementedError

    async def refers_to(self, kind: Refers, said: str, text: str) -> None:
        """Write `said` as the stranger. As ada, refer to that message with `text`, or forward it."""
        raise NotImplementedError

    async def mixed(self, text: str, message_id: str = "") -> None:
        """Forward another person's text as ada, in a form that the adapter cannot tell from her own words.

        With `message_id`, edit that message to contain the text.
        """
        raise NotImplementedError

    async def brings(self, route: Route, name: str, content: bytes) -> None:
        """Send a file as the stranger. As ada, reply to it with a question, forward it, or mention the bot after it."""
        raise NotImplementedError

    async def answers_bot(self, message_id: str, text: str) -> None:
        """Reply to one of the bot's messages as ada."""
        raise NotImplementedError

    async def posts(self, text: str) -> str:
        """Post a message in `thread` as the bot and return its id."""
        return await self.adapter.post(OutboundPost(self.thread, "said before", text))

    async def sends(self, kind: Kind) -> None:
        """Send a message of a kind without text or file as ada."""
        raise NotImplementedError

    async def adds(self, by: Literal["ada", "stranger"] = "ada") -> None:
        """Add the bot to a new chat."""
        raise NotImplementedError

    def greeted(self) -> Sequence[str]:
        """Return the messages in the chat to which the bot was added."""
        raise NotImplementedError

    async def names_by_edit(self, message_id: str, text: str) -> None:
        """Edit a message of ada's in the channel so that it mentions the bot."""
        pytest.skip("the platform does not report mentions that an edit adds")

    async def resembles(self, text: str) -> None:
        """Write as ada in the channel, mentioning someone whose name starts or ends like the bot's."""
        pytest.skip("the platform marks mentions, so names cannot be confused")

    async def alerts(self, text: str) -> None:
        """Post a card without message text in the channel, as another app."""
        pytest.skip("the platform does not deliver other apps' cards to bots")

    async def seals(self, text: str) -> None:
        """Write an encrypted message as ada. The adapter gets its key with `hands_keys`."""
        pytest.skip("the platform does not encrypt messages to bots")

    async def hands_keys(self) -> None:
        """Deliver the keys of ada's encrypted messages."""
        raise NotImplementedError

    async def announces(self, text: str, *, named: bool = False) -> None:
        """Post anonymously in a channel where only administrators may post. `named` mentions the bot."""
        pytest.skip("the platform has no anonymous messages in channels")

    async def moves(self, *, in_other_order: bool = False) -> None:
        """Give the channel a new id, and report that twice. Afterwards `in_channel` writes under the new id."""
        pytest.skip("the platform's channels keep their ids")

    async def bars(self, place: Literal["thread", "chat"], *, gone: bool = False) -> ThreadId:
        """Make a thread or a whole channel refuse posts, and return a thread in it.

        With `gone`, it refuses them permanently. Skips the test if this cannot happen on the platform.
        """
        pytest.skip("the platform cannot keep the bot from posting")

    def around(self) -> Sequence[str]:
        """Return the texts of the bot's messages in the channel, outside the thread from `bars`."""
        raise NotImplementedError

    def refuse(self, retry_after_seconds: float) -> None:
        """Make the platform refuse the next post or edit, with this retry delay in seconds."""
        self.server.troubles.append(("refuse", retry_after_seconds))

    def lose_answer(self) -> None:
        """Make the platform accept the next post and drop the connection before its answer."""
        self.server.troubles.append(("lose", 0.0))


Peer: TypeAlias = Counterpart[ChatAdapter, FakePlatform]
"""Any counterpart."""


class Inbox:
    """An `InboxPort` that records the calls of the adapter under test.

    `came` lists messages, edits, deletions and reactions; `requests` lists commands; `decided`, `decided_cards` and
    `chosen` list clicks on approvals. To change its answers, set `strangers` (ids of people who may not use the bot),
    `threads` (the thread of each message id), `listen`, `reacted` and `suggested`.
    """

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
        """Record a message and return its receipt.

        A repeated key is a duplicate, a command runs, and a message from `strangers` is dropped.
        """
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
        """Return whether the author is not in `strangers`."""
        return message.author.id not in self.strangers

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Record a decision on an approval."""
        self.decided.append((approval, allow, by, scope))
        await self._tell()
        return "allow" if allow else "deny"

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        """Record a decision on several calls."""
        self.decided_cards.append((card, allow, tuple(numbers)))
        await self._tell()
        return "Allowed." if allow else "Denied."

    async def choose(self, card: CardId, ticked: Sequence[int], by: Asker) -> str:
        """Record the ticked calls of an approval message."""
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
        """Record the removal of an "always allow" rule."""
        self.taken_back.append(asked)
        await self._tell()
        return "Removed the rule."

    async def undo_files(self, card: CardId, by: Asker) -> str:
        """Record that the file changes of an approval are undone."""
        self.undone.append(card)
        await self._tell()
        return "Restored 1 file."

    async def listens(self, thread: ThreadId) -> Listen:
        return self.listen

    async def react(self, reaction: Reaction) -> str:
        """Record a reaction and return `reacted`."""
        self.came.append(reaction)
        await self._tell()
        return self.reacted

    async def command(self, asked: CommandRequest) -> str:
        """Record a command and return its answer. A repeated key is a duplicate and returns ""."""
        if any(request.key == asked.key for request in self.requests):
            return ""
        self.requests.append(asked)
        await self._tell()
        return f"Did /{asked.name}."

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        """Return `suggested`, or nothing to people in `strangers`."""
        return () if asked.author.id in self.strangers else self.suggested

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """Return the thread in `threads` of the message id or key, or else the thread of the prompt with this key."""
        went = next((prompt.thread for prompt in self.said() if key and prompt.key == key), None)
        return self.threads.get(message_id) or self.threads.get(key) or went

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds` returns True. It is checked after each recorded call. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(holds)

    async def prompts(self, count: int) -> list[Prompt]:
        """Wait for `count` prompts and return all prompts. Raises TimeoutError."""
        await self.until(lambda: len(self.said()) >= count)
        return self.said()

    def said(self) -> list[Prompt]:
        """Return the recorded prompts."""
        return [message for message in self.came if isinstance(message, Prompt)]

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def serving(adapter: ChatAdapter, inbox: Inbox) -> AsyncGenerator[asyncio.Task[None]]:
    """Run an adapter inside the block. Leaving the block cancels it and waits for its end."""
    task = asyncio.ensure_future(adapter.run(inbox))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or task.exception() is None


def needs(peer: Peer, *features: Lack) -> None:
    """Skip the test if the platform lacks one of these features."""
    missing: list[Lack] = [feature for feature in features if feature in peer.lacks]
    if missing:
        pytest.skip(LACKS[missing[0]])


def post(peer: Peer, markdown: str, key: str = "k1", **fields: object) -> OutboundPost:
    """Return a post to `peer.thread`. `fields` replace fields of `OutboundPost`."""
    return msgspec.structs.replace(OutboundPost(peer.thread, key, markdown), **fields)
