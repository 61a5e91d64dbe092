"""The commands about conversations: /context, /thread, /tasks, /model and /retry."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from shoal.agents.agent_commands import agent_here
from shoal.agents.places import place_of
from shoal.agents.registry import Agents
from shoal.agents.snapshots import Snapshots
from shoal.domain.clock import Clock
from shoal.domain.commands import Asked
from shoal.domain.errors import Forbidden, NotFound
from shoal.domain.ids import ThreadId, channel_of
from shoal.domain.messages import Abort, Inbound, Prompt, Receipt, Retry
from shoal.domain.records import StoredStep, ThreadInfo
from shoal.domain.registry import Work
from shoal.domain.store import Store
from shoal.permissions.access import Audiences

LIST_MAX = 20
"""Most lines of one answer."""
THREADS_READ_MAX = 500
TITLE_CHARS_MAX = 80

CONTEXT_USAGE = (
    "`/context [show]`, `/context clear`, `/context save [DESCRIPTION]`, `/context history`, `/context restore ID`"
)
THREAD_USAGE = "`/thread list`, `/thread kill ID`, `/thread history ID`"


class Front(Protocol):
    """What these commands ask of the orchestrator."""

    async def send(self, message: Inbound) -> Receipt:
        """Accept a message."""
        ...

    async def clear(self, thread: ThreadId, by: str) -> None:
        """Start the window anew."""
        ...


class Conversations(msgspec.Struct, frozen=True):
    """What the commands stand on. `audiences` tells who sees other channels; `check_model` raises InvalidInput;
    `models` lists the known ones; `processes` tells what an agent's processes do, a line each, for the threads whose
    ids begin with a text."""

    store: Store
    agents: Agents
    snapshots: Snapshots
    clock: Clock
    audiences: Audiences
    check_model: Callable[[str], None]
    models: Callable[[], Sequence[str]]
    processes: Callable[[str, str], Awaitable[Sequence[str]]]


class ThreadCommands:
    """What /context, /thread, /tasks, /model and /retry do."""

    def __init__(self, front: Front, parts: Conversations) -> None:
        self._front = front
        self._parts = parts
        self._store = parts.store

    # ---- /context ----

    async def context(self, asked: Asked) -> str:
        """/context."""
        word, _, rest = asked.argument.partition(" ")
        snapshots, thread, rest = self._parts.snapshots, asked.thread, rest.strip()
        match word.lower():
            case "" | "show":
                return await self._window(thread)
            case "clear":
                await self._front.clear(thread, asked.author.id)
                return "Cleared. What was said before is kept, but I do not look at it."
            case "save":
                saved = await snapshots.save(thread, rest)
                return f"Saved {saved.messages} messages as `{saved.id}`: {saved.description}"
            case "history":
                return _listed(
                    [
                        f"- `{one.id}` {_at(one.created_at)}: {one.description}"
                        for one in await snapshots.history(thread)
                    ],
                    "Nothing was saved in this channel.",
                )
            case "restore" if rest:
                found = await snapshots.restore(thread, rest, asked.author.id)
                return f"I look at this again: {found.description}"
            case _:
                return f"There are: {CONTEXT_USAGE}."

    async def _window(self, thread: ThreadId) -> str:
        stretch = await self._store.snapshots.stretch(thread)
        if stretch is None:
            return "Nothing was said here yet."
        count = stretch.last_seq - stretch.window_seq
        return f"I look at the newest {count} of {stretch.last_seq} events. There are: {CONTEXT_USAGE}."

    # ---- /thread ----

    async def thread(self, asked: Asked) -> str:
        """/thread."""
        match asked.argument.split():
            case [] | ["list"]:
                return await self._list(asked)
            case ["kill", name]:
                thread = await self._named(asked, name)
                receipt = await self._front.send(Abort(thread, asked.author, all_queued=True))
                return f"Stopping {thread}." if receipt.delivered else f"Nothing runs in {thread}."
            case ["history"]:
                return await self._history(asked.thread)
            case ["history", name]:
                return await self._history(await self._named(asked, name))
            case _:
                return f"There are: {THREAD_USAGE}."

    async def _list(self, asked: Asked) -> str:
        spec = await agent_here(self._store, self._parts.agents, asked.thread)
        within = self._within(asked)
        channels = (within,) if within else ()
        found = await self._store.journal.threads(THREADS_READ_MAX, agent=spec.name, channels=channels)
        here = place_of(asked.thread)
        return _listed([_thread_line(info, here) for info in found], f"{spec.name} has no threads here.")

    async def _named(self, asked: Asked, name: str) -> ThreadId:
        """A thread by its id, or by its last part in this channel.

        Raises Forbidden for another channel's, whether there is such a thread or not, and NotFound.
        """
        thread = ThreadId(name if name.count(":") == 2 else f"{channel_of(asked.thread)}{name}")
        if not thread.startswith(self._within(asked)):
            raise Forbidden("That is in another channel, which only my owner may look into, and only in private.")
        if await self._store.journal.thread(thread) is None:
            raise NotFound(f"There is no thread {name[:80]}. `/thread list` shows them.")
        return thread

    def _within(self, asked: Asked) -> str:
        """What the ids of the threads begin with that whoever asks may see."""
        audience = self._parts.audiences.of(asked.asker, asked.author, asked.thread)
        return audience.within(asked.thread)

    async def _history(self, thread: ThreadId) -> str:
        steps = await self._store.journal.steps(thread)
        if not steps:
            return f"No step of {thread} is recorded."
        lines = [_step_line(step) for step in steps[-LIST_MAX:]]
        total = sum(step.step.duration_ms for step in steps)
        head = f"{thread}: {len(steps)} steps, {_seconds(total)} in all"
        if len(steps) > LIST_MAX:
            head += f"; the last {LIST_MAX}"
        return "\n".join([f"{head}:", *lines])

    # ---- /tasks ----

    async def tasks(self, asked: Asked) -> str:
        """/tasks: what the agent of this channel does, on all machines, as far as whoever asks may see it."""
        spec = await agent_here(self._store, self._parts.agents, asked.thread)
        within, now = self._within(asked), self._parts.clock.now()
        works = await self._store.registry.at_work(spec.name, within=within)
        lines = [_work_line(work, now) for work in works]
        lines += [f"- process {line}" for line in await self._parts.processes(spec.name, within)]
        return _listed(lines, f"{spec.name} has nothing to do.")

    # ---- /model ----

    async def model(self, asked: Asked) -> str:
        """/model: what there is, or one message with a model of its own."""
        name, _, rest = asked.argument.partition(" ")
        if not name:
            spec = await agent_here(self._store, self._parts.agents, asked.thread)
            known = [f"- `{one}`" for one in self._parts.models()]
            head = f"**{spec.name}** answers with `{spec.model}`. `/model NAME TEXT` asks another one once. Known are:"
            return "\n".join([head, _listed(known, "none")])
        if not asked.author.trusted:
            raise Forbidden("Only people whom my owner has let in by name may choose a model.")
        self._parts.check_model(name)
        if not rest.strip():
            return f"Write the message after it: `/model {name} TEXT`. `/settings model {name}` chooses it for good."
        prompt = Prompt(
            asked.thread,
            asked.key,
            rest.strip(),
            asked.author,
            asked.at,
            model=name,
            message_id=asked.message_id,
            direct=asked.direct,
        )
        receipt = await self._front.send(prompt)
        return "I am busy: too many messages wait already." if receipt.status == "busy" else ""

    # ---- /retry ----

    async def retry(self, asked: Asked) -> str:
        """/retry: ask the model again that the turn waits for, or another one."""
        if asked.argument:
            self._parts.check_model(asked.argument)
        receipt = await self._front.send(Retry(asked.thread, asked.author, model=asked.argument))
        return "Trying again." if receipt.delivered else "I do not wait for a model here."


def describe_work(work: Work, now: datetime) -> str:
    """What a thread does, in a line, for people and for the agent's other threads."""
    state = describe_state(work, now)
    return f"{_short(work.asked)} ({state})" if work.turn else state


def describe_state(work: Work, now: datetime) -> str:
    """How far a thread is, without a word of what it is about."""
    if not work.turn:
        return f"{work.queued} waiting"
    since = f"for {_seconds(int((now - work.since).total_seconds() * 1000))}" if work.since is not None else "now"
    state = "waits for a person's decision" if work.questions else f"at step {work.steps + 1}"
    queued = f", {work.queued} waiting behind" if work.queued else ""
    return f"{since}, {state}{queued}"


def _work_line(work: Work, now: datetime) -> str:
    child = f", for {work.parent}" if work.parent else ""
    return f"- `{work.thread}` {describe_work(work, now)}{child}"


def _thread_line(info: ThreadInfo, here: str) -> str:
    name = info.thread.rpartition(":")[2] if place_of(info.thread) == here else info.thread
    state = "at work" if info.open_turn else "idle"
    queued = f", {info.queued} waiting" if info.queued else ""
    return f"- `{name}` {_short(info.title)} ({state}{queued}, {_at(info.updated_at)})"


def _step_line(stored: StoredStep) -> str:
    step = stored.step
    return f"- {_at(step.started_at)} step {step.number}: {_short(step.description)}, {_seconds(step.duration_ms)}"


def _listed(lines: Sequence[str], nothing: str) -> str:
    if len(lines) > LIST_MAX:
        lines = [*lines[:LIST_MAX], f"- and {len(lines) - LIST_MAX} more"]
    return "\n".join(lines) or nothing


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("`", "'")
    return line if len(line) <= TITLE_CHARS_MAX else f"{line[: TITLE_CHARS_MAX - 1]}…"


def _seconds(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
