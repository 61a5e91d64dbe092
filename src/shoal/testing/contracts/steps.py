"""Records and turn steps that several contract suites use."""

from datetime import UTC, datetime

from shoal.kernel.events import AssistantSaid, EventData, Outcome, TurnFinished, TurnStarted, UserSaid
from shoal.kernel.ids import ThreadId, TurnId, make_thread_id
from shoal.kernel.messages import Author, FollowUp, Prompt, Steer
from shoal.kernel.records import Commit, Committed, Lease, NewPost
from shoal.store.store import Store

PERSON = Author("u1", "Person", trusted=True)
SENT_AT = datetime(2026, 1, 5, 8, 59, tzinfo=UTC)
THREAD = make_thread_id("web", "lobby", "one")
OTHER = make_thread_id("web", "lobby", "two")


def prompt(key: str, thread: ThreadId = THREAD, text: str = "hello") -> Prompt:
    return Prompt(thread, key, text, PERSON, SENT_AT)


def line(key: str, person: Author = PERSON) -> Prompt:
    """Return a message that a person wrote in a chat."""
    return Prompt(THREAD, key, f"line {key}", person, SENT_AT, in_chat=True)


def steer(key: str, thread: ThreadId = THREAD, text: str = "wait") -> Steer:
    return Steer(thread, key, text, PERSON, SENT_AT)


def follow_up(key: str, thread: ThreadId = THREAD, text: str = "and then") -> FollowUp:
    return FollowUp(thread, key, text, PERSON, SENT_AT)


def post(identity: str, thread: ThreadId = THREAD, text: str = "reply") -> NewPost:
    return NewPost(identity, thread, text)


def opening(turn: str, prompt_said: Prompt) -> Commit:
    """Return the commit that opens a turn for a prompt."""
    return Commit(
        TurnId(turn), (TurnStarted("main", "demo"), UserSaid(prompt_said.text, prompt_said.author, prompt_said.key))
    )


def answer(turn: str, text: str = "hi") -> Commit:
    """Return the commit of a finished model call."""
    return Commit(TurnId(turn), (AssistantSaid(text),))


def ending(turn: str, outcome: Outcome = "done", *before: EventData) -> Commit:
    """Return the final commit of a turn, including its reply."""
    finished = TurnFinished(outcome, "hi")
    return Commit(TurnId(turn), (*before, finished), posts=(NewPost(f"{turn}:reply", THREAD, "hi"),))


async def leased(store: Store, thread: ThreadId = THREAD) -> Lease:
    """Lease a thread that has work."""
    lease = await store.journal.lease(thread)
    assert lease is not None, f"{thread} has no work"
    return lease


async def opened(store: Store, turn: str = "T1", thread: ThreadId = THREAD, *, key: str = "") -> Lease:
    """Accept a prompt, lease the thread, and open a turn with the prompt."""
    message = prompt(key or f"m-{turn}", thread)
    assert (await store.inbox.accept(message, 100)).status == "accepted"
    lease = await leased(store, thread)
    assert lease.prompt == message
    await store.journal.open_turn(lease, message, opening(turn, message))
    return lease


async def closed(store: Store, lease: Lease, turn: str = "T1", outcome: Outcome = "done") -> Committed:
    """Finish an open turn."""
    return await store.journal.finish_turn(lease, ending(turn, outcome))


async def types(store: Store, thread: ThreadId = THREAD) -> list[str]:
    """Return the types of a thread's events, oldest first."""
    return [event.type for event in await store.journal.events(thread)]
