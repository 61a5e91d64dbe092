"""What the model gets to see: the system text settled at the turn's start, the transcript, the tools."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from shoal.domain.agents import AgentSpec
from shoal.domain.clock import Clock
from shoal.domain.events import TurnStarted
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId
from shoal.domain.messages import ModelRequest, Prompt, ToolSpec, Usage
from shoal.domain.permissions import Asker, Audience
from shoal.domain.ports import Mount, Route
from shoal.permissions.rules import Profile
from shoal.tools.executor import CallContext, Executor
from shoal.turn.budget import BudgetLimits, Room, fit, room_for
from shoal.turn.prompt import PromptBuilder
from shoal.turn.sections import SystemPrompt, decode_prompt, encode_prompt, settle
from shoal.turn.session import Session
from shoal.turn.skills import skill_mounts, skill_places, skill_roots
from shoal.turn.tokens import ESTIMATES, Calibration, Gauge, Meter
from shoal.turn.volatile import volatile

Profiles = Callable[[AgentSpec, Asker], Profile]


class Window(msgspec.Struct, frozen=True):
    """What of a thread may be sent; see [context]. `hours` 0 has no end, `context_tokens_max` 0 is the model's own;
    `meter` counts what it takes."""

    budget: BudgetLimits = BudgetLimits()
    hours: float = 24.0
    context_tokens_max: int = 0
    meter: Meter = ESTIMATES


class Doings(NamedTuple):
    """What an agent does beside a turn, a line each: in its other threads, and by its processes."""

    others: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()


class Sources(msgspec.Struct, frozen=True):
    """Where a turn's surroundings come from: the profile that holds, what the agent does beside the thread in those
    whose ids begin with a text, what is left to spend where that is little and the turn's audience may know it; and
    what tells the files of prompts that untrusted content had a hand in."""

    profiles: Profiles
    beside: Callable[[ThreadId, AgentSpec, str], Awaitable[Doings]]
    spend_left: Callable[[ThreadId, str, Asker, Audience], Awaitable[str]]
    marked: Callable[[str], Awaitable[Callable[[Path], str]]]


class Opening(msgspec.Struct, frozen=True):
    """What a turn opens with. `expired_seq` is where the rolling window now begins, 0 when it stays as it is."""

    started: TurnStarted
    expired_seq: int
    new: tuple[SystemPrompt, ...]

    @property
    def prompts(self) -> tuple[tuple[str, bytes], ...]:
        """What is not known to be stored, by its digest."""
        return tuple((one.digest, encode_prompt(one)) for one in self.new)


class ContextBuilder:
    """Builds requests and call contexts. See `Sources`."""

    def __init__(
        self, home: Home, executor: Executor, prompts: PromptBuilder, clock: Clock, window: Window, sources: Sources
    ) -> None:
        self._home = home
        self._executor = executor
        self._prompts = prompts
        self._profiles = sources.profiles
        self._clock = clock
        self._beside = sources.beside
        self._spend_left = sources.spend_left
        self._marked = sources.marked
        self.limits = window.budget
        self.meter = window.meter
        self._context_tokens = window.context_tokens_max
        self._window = timedelta(hours=window.hours)
        self._calibration = Calibration()
        self._known: WeakValueDictionary[str, SystemPrompt] = WeakValueDictionary()

    async def open(self, session: Session, prompt: Prompt) -> Opening:
        """Settle the system text of the turn that `prompt` starts and what is told beside it."""
        agent = session.who
        expired_seq = self._expired(session)
        if expired_seq:
            session.base = session.told = ""
        session.tools = None
        now = await self._present(session)
        settled = settle(await self._stored(session, session.base), await self._stored(session, session.told), now)
        beside = await self._beside(session.thread, agent, session.audience.within(session.chat))
        text = volatile(
            self._clock.now(),
            others=beside.others,
            processes=beside.processes,
            spend_left=await self._spend_left(session.thread, agent.name, session.asker, session.audience),
            memory_changes=settled.changes,
        )
        new = {one.digest: one for one in (settled.system, settled.told) if one.digest not in self._known}
        session.system = settled.system
        started = TurnStarted(
            agent=agent.name,
            model=prompt.model or agent.model,
            context=text,
            history=prompt.history,
            system=settled.system.digest,
            told=settled.told.digest,
            tainted_by=settled.tainted_by,
        )
        return Opening(started, expired_seq, tuple(new.values()))

    def opened(self, opening: Opening) -> None:
        """Told when an opening is durable, and its prompts with it."""
        self._known.update({one.digest: one for one in opening.new})

    async def resume(self, session: Session) -> None:
        """Find the system text of a turn that another process opened."""
        session.tools = None
        session.system = await self._stored(session, session.base) or await self._present(session)

    def request(self, session: Session, route: Route, *, tools: bool) -> ModelRequest:
        """The next request of the open turn, fitted to the model's window. Raises InvalidInput when nothing can fit."""
        agent = session.who
        session.transcript.settle()
        if session.open.history:
            room = self.room(session, route)
            room = room.within(session.squeezed_to) if session.squeezed_to else room
            fitted = fit(session.tally, session.transcript.entries, room)
            messages = fitted.messages
            session.request_units = fitted.units if tools else 0  # without tools it teaches nothing
        else:
            messages = session.transcript.messages_of(session.turn)
            session.request_units = 0
        return ModelRequest(
            model=route.model,
            system=self._text(session).text,
            messages=messages,
            tools=self._specs(session),
            max_output_tokens=self._output_tokens(session, route),
            temperature=agent.temperature,
            cache_key=session.thread,
            tool_choice="auto" if tools else "none",
        )

    def room(self, session: Session, route: Route) -> Room:
        """How the model's window is shared out. Raises InvalidInput when the instructions fill it."""
        return room_for(
            self.limits,
            window_tokens=self._context_tokens or route.context_tokens,
            output_tokens=self._output_tokens(session, route),
            prefix_units=self.meter.prefix(self._text(session).text, self._specs(session)),
            factor=self.gauge(session, route).factor,
        )

    def clean(self, text: str) -> str:
        """The text without secrets, for the journal."""
        return self._executor.redactor.redact(text)

    def gauge(self, session: Session, route: Route) -> Gauge:
        """What tells the tokens of this model's requests."""
        return Gauge(self.meter, self._calibration.factor(_learnt_by(session, route)))

    def learn(self, session: Session, route: Route, usage: Usage) -> None:
        """Take in what the provider reports for the last request."""
        self._calibration.learn(_learnt_by(session, route), session.request_units, usage.input_tokens)

    def calls(self, session: Session) -> CallContext:
        """For whom and where the open turn's calls run."""
        agent = session.who
        mounts = self.mounts(agent, session.thread)
        for mount in mounts:  # made when first needed: most threads never use a tool
            if not mount.host.is_dir():
                mount.host.mkdir(parents=True, exist_ok=True)
        return CallContext(
            thread=session.thread,
            turn=session.turn,
            asker=session.asker,
            agent=agent,
            mounts=mounts,
            profile=self._profile(session),
            taint=session.taint,
            bounds=self._bounds(session),
            purpose=session.purpose,
        )

    def mounts(self, agent: AgentSpec, thread: ThreadId) -> tuple[Mount, ...]:
        """What the agent's commands and file tools reach, first the workspace."""
        return (
            Mount(agent.workspace, "/workspace", writable=True),
            Mount(self._home.scratch(thread), "/scratch", writable=True),
            Mount(self._home.attachments(thread), "/attachments"),
            Mount(agent.home / "docs", "/docs"),
            *skill_mounts(skill_roots(self._home, agent.home, thread)),
        )

    def _expired(self, session: Session) -> int:
        """The event up to which the conversation is older than the window."""
        if not self._window:
            return 0
        return session.transcript.expired(self._clock.now() - self._window)

    async def _present(self, session: Session) -> SystemPrompt:
        agent = session.who
        skills = skill_places(skill_roots(self._home, agent.home, session.thread))
        mounts = (Mount(agent.workspace, "/workspace", writable=True), *skills)

        def inside(path: Path) -> str:
            return self._executor.sandbox.inside(path, mounts)

        person = session.audience.person
        source_of = await self._marked(person)
        return self._prompts.system(agent, session.thread, self._specs(session), inside, source_of, person)

    def _specs(self, session: Session) -> tuple[ToolSpec, ...]:
        """The tools as of the turn's start: what comes or goes meanwhile changes nothing of what the model is told."""
        if session.tools is None:
            session.tools = self._executor.specs(session.who, self._profile(session), *self._bounds(session))
        return session.tools

    def _text(self, session: Session) -> SystemPrompt:
        assert session.system is not None, "the turn's system text is not settled"
        return session.system

    def _output_tokens(self, session: Session, route: Route) -> int:
        wanted = session.who.max_output_tokens
        return min(wanted, route.max_output_tokens or wanted)

    def _profile(self, session: Session) -> Profile:
        return self._profiles(session.who, session.asker)

    def _bounds(self, session: Session) -> tuple[Profile, ...]:
        """The profiles of the turns above that are not this turn's own, as they hold for the asker."""
        if session.caller is None:
            return ()
        own = self._profile(session)
        above = (
            self._profiles(msgspec.structs.replace(session.who, name=agent, profile=profile), session.asker)
            for profile, agent in session.caller.bounds
        )
        return tuple(dict.fromkeys(profile for profile in above if profile is not own))

    async def _stored(self, session: Session, digest: str) -> SystemPrompt | None:
        if not digest:
            return None
        found = self._known.get(digest)
        if found is None:
            body = await session.journal.prompt(digest)
            if body is None:
                return None
            found = decode_prompt(body)
            self._known[digest] = found
        return found


def _learnt_by(session: Session, route: Route) -> str:
    return f"{route.model} {session.audience.within(session.chat)}"
