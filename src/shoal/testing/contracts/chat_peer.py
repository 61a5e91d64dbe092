"""The platform side of a chat adapter in contract tests, and an inbox that records the adapter's calls."""

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
"""Timeout for waits that must succeed. No result depends on it."""

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
"""Features that a platform or its fake may lack. Each value is the reason for skipping the tests of the feature."""
THREADS_ARE_OPEN = "a thread accepts posts as long as its channel does"

Refers: TypeAlias = Literal["reply", "quote", "forward", "own"]
"""Ways in which a message can refer to another message. `own` is a reply to, or a quote of, a message from the bot."""
Route: TypeAlias = Literal["reply", "forward", "before"]
"""Ways in which another person's file can reach the bot. `before` is a file that was posted in a channel before a
message mentioned the bot.
"""
Kind: TypeAlias = Literal["sticker", "location", "contact", "poll", "video note", "animation", "picture", "unknown"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of messages without text or file. `unknown` represents kinds that the platform may add later."""


Who: TypeAlias = Literal["ada", "bot", "itself", "stranger"]
"""Authors of messages.

- `ada`: a person who may use the bot.
- `bot`: another bot.
- `itself`: the bot itself.
- `stranger`: a person who may not use the bot.
"""


class Shown(msgspec.Struct):
    """A message as people see it.

    - `text`: the text without markup.
    - `file`: the name and content of a file.
    - `album`: the names and contents of several files.
    - `kind`: `image`, `voice` or `file` if the platform shows these differently, otherwise empty.
    """

    id: str
    text: str
    buttons: tuple[str, ...] = ()
    file: tuple[str, bytes] | None = None
    reply_to: str = ""
    kind: str = ""
    album: tuple[tuple[str, bytes], ...] = ()


class MemorySettings:
    """Settings in memory. While `broken` is set, `get` raises StoreError."""

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
        """Store `value` and return True if the current value equals `expected`."""
        if self.values.get((scope, key)) != expected:
            return False
        self.values[scope, key] = value
        return True

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        """Return up to `limit` keys and values of a scope, sorted by key. Keys up to and including `after` are
        skipped.
        """
        rows = sorted(
            (key, value) for (scope_of_row, key), value in self.values.items() if scope_of_row == scope and key > after
        )
        return rows[:limit]

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        """Delete the value and return True if it equals `expected`."""
        return self.values.get((scope, key)) == expected and self.values.pop((scope, key)) == expected


A_co = TypeVar("A_co", bound=ChatAdapter, covariant=True)
P_co = TypeVar("P_co", bound=FakePlatform, covariant=True)


class Counterpart(Generic[A_co, P_co]):
    """A platform, its people, and the adapter under test. Subclass it for your adapter.

    Set `adapter`, `thread` and `other`, and implement the methods for people's actions. The suite never calls the
    methods of a feature in `lacks`. Some methods skip their test by default. Override them if the platform supports
    the action that they describe. `ada` is a person who may use the bot.

    - `thread`: an existing conversation with ada.
    - `other`: a second conversation with ada.
    - `stranger`: the id of a person who may not use the bot.
    - `lacks`: features that the platform or its fake does not have.
    - `refers`: kinds of references that the platform delivers to bots.
    - `kinds`: kinds of messages without text or file that the platform delivers to bots.
    - `routes`: ways in which the platform delivers another person's file to bots.
    - `mixes`: True if a message can contain another person's text that the adapter cannot distinguish from ada's.
    - `order`: the order of events that arrive out of order. It is `written` if the platform numbers them, otherwise
      `arrived`.
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
        """Return the texts that ada sees in `thread`, including those that only she can see."""
        return [post.text for post in self.shown()]

    async def says(self, text: str, *, author: Who = "ada") -> str:
        """Write a message in `thread` and return its id on the platform."""
        raise NotImplementedError

    async def in_channel(
        self, text: str, *, named: bool = False, inside: str = "", answers: str = "", author: Who = "ada"
    ) -> str:
        """Write a message in a channel with several people and return its id.

        - `named`: mention the bot.
        - `inside`: the id of a message. The new message joins the thread of that message.
        - `answers`: the id of a message from the bot. The new message replies to it.
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
        """Write `said` as the stranger. Then write `text` as ada, with a reference of this kind to the stranger's
        message.
        """
        raise NotImplementedError

    async def mixed(self, text: str, message_id: str = "") -> None:
        """Forward another person's text as ada, in a form that the adapter cannot distinguish from her own words.

        If `message_id` is set, edit that message instead, and add the text to it.
        """
        raise NotImplementedError

    async def brings(self, route: Route, name: str, content: bytes) -> None:
        """Send a file as the stranger. Then, as ada, reply to it, forward it, or mention the bot, depending on
        `route`.
        """
        raise NotImplementedError

    async def answers_bot(self, message_id: str, text: str) -> None:
        """Reply to one of the bot's messages as ada."""
        raise NotImplementedError

    async def posts(self, text: str) -> str:
        """Post a message in `thread` as the bot and return its id."""
        return await self.adapter.post(OutboundPost(self.thread, "said before", text))

    async def sends(self, kind: Kind) -> None:
        """Send a message of this kind as ada. It contains neither text nor a file."""
        raise NotImplementedError

    async def adds(self, by: Literal["ada", "stranger"] = "ada") -> None:
        """Add the bot to a new chat."""
        raise NotImplementedError

    def greeted(self) -> Sequence[str]:
        """Return the messages in the chat that the bot was added to."""
        raise NotImplementedError

    async def names_by_edit(self, message_id: str, text: str) -> None:
        """Edit one of ada's messages in the channel so that it mentions the bot."""
        pytest.skip("the platform does not report mentions that an edit adds")

    async def resembles(self, text: str) -> None:
        """Write in the channel as ada, and mention someone whose name starts or ends like the bot's name."""
        pytest.skip("the platform marks mentions, so names cannot be confused")

    async def alerts(self, text: str) -> None:
        """Post a card without message text in the channel, as another app."""
        pytest.skip("the platform does not deliver other apps' cards to bots")

    async def seals(self, text: str) -> None:
        """Write an encrypted message as ada. `hands_keys` delivers its key to the adapter."""
        pytest.skip("the platform does not encrypt messages to bots")

    async def hands_keys(self) -> None:
        """Deliver the keys of ada's encrypted messages."""
        raise NotImplementedError

    async def announces(self, text: str, *, named: bool = False) -> None:
        """Post anonymously in a channel where only administrators may post. `named` mentions the bot."""
        pytest.skip("the platform has no anonymous messages in channels")

    async def moves(self, *, in_other_order: bool = False) -> None:
        """Give the channel a new id and notify the bot. After that, `in_channel` writes under the new id.

        `in_other_order` changes the order of the notifications.
        """
        pytest.skip("the platform's channels keep their ids")

    async def bars(self, place: Literal["thread", "chat"], *, gone: bool = False) -> ThreadId:
        """Make a thread or an entire channel refuse posts, and return a thread in it.

        If `gone` is set, the refusal is permanent. Skips the test if the platform cannot refuse posts.
        """
        pytest.skip("the platform cannot keep the bot from posting")

    def around(self) -> Sequence[str]:
        """Return the texts of the bot's messages in the channel, except those in the thread that `bars` returned."""
        raise NotImplementedError

    def refuse(self, retry_after_seconds: float) -> None:
        """Make the platform refuse the next post or edit, with a retry delay of `retry_after_seconds`."""
        self.server.troubles.append(("refuse", retry_after_seconds))

    def lose_answer(self) -> None:
        """Make the platform accept the next post but drop the connection before it responds."""
        self.server.troubles.append(("lose", 0.0))


Peer: TypeAlias = Counterpart[ChatAdapter, FakePlatform]


class Inbox:
    """An `InboxPort` that records the calls of the adapter under test.

    - `came`: messages, edits, deletions and reactions.
    - `requests`: commands.
    - `decided`, `decided_cards`, `chosen`: clicks on approvals.

    To change the results of its methods, set these attributes:

    - `strangers`: ids of people who may not use the bot.
    - `threads`: the thread of each message id.
    - `listen`: the result of `listens`.
    - `reacted`: the result of `react`.
    - `suggested`: the result of `suggestions`.
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

        If the key was already recorded, the message is a duplicate. If the text is a command, run it. Messages from
        people in `strangers` are dropped.
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
        """Return True unless the author is in `strangers`."""
        return message.author.id not in self.strangers

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Record a decision on an approval."""
        self.decided.append((approval, allow, by, scope))
        await self._tell()
        return "allow" if allow else "deny"

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        """Record a decision on the calls of an approval message."""
        self.decided_cards.append((card, allow, tuple(numbers)))
        await self._tell()
        return "Allowed." if allow else "Denied."

    async def choose(self, card: CardId, ticked: Sequence[int], by: Asker) -> str:
        """Record the calls that a person ticked in an approval message."""
        self.chosen.append((card, tuple(ticked)))
        await self._tell()
        return CHOOSING

    async def always(
        self, asked: ApprovalId | CardId, by: Asker, numbers: Sequence[int] = (), *, or_thread: bool = False
    ) -> str:
        """Record a click on the button to always allow a call."""
        self.decided.append((ApprovalId(asked), True, by, "always"))
        await self._tell()
        return "Always allowed."

    async def take_back(self, asked: str, by: Asker, thread: str = "") -> str:
        """Record the removal of an "always allow" rule."""
        self.taken_back.append(asked)
        await self._tell()
        return "Removed the rule."

    async def undo_files(self, card: CardId, by: Asker) -> str:
        """Record a request to undo the file changes of an approval."""
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
        """Record a command and return its answer. Return an empty string if its key was already recorded."""
        if any(request.key == asked.key for request in self.requests):
            return ""
        self.requests.append(asked)
        await self._tell()
        return f"Did /{asked.name}."

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        """Return `suggested`, or no suggestions for a person in `strangers`."""
        return () if asked.author.id in self.strangers else self.suggested

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """Return the thread that `threads` contains for the message id or key.

        If it contains neither, return the thread of the recorded prompt with this key, or None.
        """
        went = next((prompt.thread for prompt in self.said() if key and prompt.key == key), None)
        return self.threads.get(message_id) or self.threads.get(key) or went

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds` returns True. It is evaluated after each recorded call. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(holds)

    async def prompts(self, count: int) -> list[Prompt]:
        """Wait until at least `count` prompts are recorded, and return all of them. Raises TimeoutError."""
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
    """Run the adapter while the block runs, then cancel it, wait until it has ended, and close it."""
    task = asyncio.ensure_future(adapter.run(inbox))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        await adapter.close()
        assert task.cancelled() or task.exception() is None


def needs(peer: Peer, *features: Lack) -> None:
    """Skip the test if the platform lacks any of these features."""
    missing: list[Lack] = [feature for feature in features if feature in peer.lacks]
    if missing:
        pytest.skip(LACKS[missing[0]])


def post(peer: Peer, markdown: str, key: str = "k1", **fields: object) -> OutboundPost:
    """Return a post to `peer.thread`. `fields` override fields of `OutboundPost`."""
    return msgspec.structs.replace(OutboundPost(peer.thread, key, markdown), **fields)
