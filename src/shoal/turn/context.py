"""What the model gets to see: the system text settled at the turn's start, the transcript, the tools.

The block that ends a turn's user message: what is true now and would break a stable prefix anywhere else.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from shoal.domain.agents import AgentSpec, Purpose
from shoal.domain.clock import Clock
from shoal.domain.events import TurnStarted
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId
from shoal.domain.messages import ModelRequest, Prompt, ToolSpec, Usage
from shoal.domain.permissions import Asker, Audience
from shoal.domain.ports import Mount, Route
from shoal.domain.settings import ContextSettings
from shoal.permissions.profiles import Profile
from shoal.tools.executor import CallContext, Executor
from shoal.turn.budget import Calibration, Gauge, Meter, TokenRoom, fit, room_for
from shoal.turn.prompt import PromptBuilder, SystemPrompt, choose_prompts, decode_prompt, encode_prompt
from shoal.turn.skills import skill_mounts, skill_places, skill_roots
from shoal.turn.thread import ThreadView, TurnRun, TurnScope, chat_of


class Activity(NamedTuple):
    """What an agent does beside a turn, a line each: in its other threads, and by its processes."""

    others: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()


class TurnOpening(msgspec.Struct, frozen=True):
    """What a turn opens with. `expired_seq` is where the rolling window now begins, 0 when it stays as it is; `new` are
    the prompts that are not known to be stored."""

    started: TurnStarted
    expired_seq: int
    system: SystemPrompt
    tools: tuple[ToolSpec, ...]
    new: tuple[SystemPrompt, ...]

    @property
    def prompts(self) -> tuple[tuple[str, bytes], ...]:
        """The new ones, to be stored by their digests."""
        return tuple((one.digest, encode_prompt(one)) for one in self.new)


class ContextBuilder:
    """Builds requests and call contexts.

    `profile_of` gives the profile that holds for an agent and an asker; `activity` what the agent does beside a thread,
    in those whose ids begin with a text; `spend_left` what is left to spend, where that is little and the audience may
    know it; `tainted_files` what tells the files of prompts that untrusted content had a hand in.
    """

    def __init__(
        self,
        home: Home,
        executor: Executor,
        prompts: PromptBuilder,
        clock: Clock,
        settings: ContextSettings,
        context_tokens_max: int,
        meter: Meter,
        *,
        profile_of: Callable[[AgentSpec, Asker], Profile],
        activity: Callable[[ThreadId, AgentSpec, str], Awaitable[Activity]],
        spend_left: Callable[[ThreadId, str, Asker, Audience], Awaitable[str]],
        tainted_files: Callable[[str], Awaitable[Callable[[Path], str]]],
    ) -> None:
        self._home = home
        self._executor = executor
        self._prompts = prompts
        self._clock = clock
        self._profile_of = profile_of
        self._activity = activity
        self._spend_left = spend_left
        self._tainted_files = tainted_files
        self.settings = settings
        self.meter = meter
        self._context_tokens = context_tokens_max
        self._window = timedelta(hours=settings.window_hours)
        self._calibration = Calibration()
        self._known: WeakValueDictionary[str, SystemPrompt] = WeakValueDictionary()

    async def open(self, view: ThreadView, scope: TurnScope, prompt: Prompt) -> TurnOpening:
        """Choose the system text of the turn that `prompt` starts and what is told beside it."""
        agent, now = scope.agent, self._clock.now()
        expired_seq = view.transcript.expired(now - self._window) if self._window else 0
        base = announced = None
        if not expired_seq:
            base, announced = await self._stored(view, view.base), await self._stored(view, view.announced)
        tools = self._tools(scope)
        chosen = choose_prompts(base, announced, await self._present(view, scope, tools))
        chat = chat_of(view.thread, scope.caller)
        activity = await self._activity(view.thread, agent, scope.audience.within(chat))
        text = volatile(
            now,
            others=activity.others,
            processes=activity.processes,
            spend_left=await self._spend_left(view.thread, agent.name, scope.asker, scope.audience),
            memory_changes=chosen.changes,
        )
        new = {one.digest: one for one in (chosen.system, chosen.announced) if one.digest not in self._known}
        started = TurnStarted(
            agent=agent.name,
            model=prompt.model or agent.model,
            context=text,
            history=prompt.history,
            system=chosen.system.digest,
            told=chosen.announced.digest,
            tainted_by=chosen.tainted_by,
        )
        return TurnOpening(started, expired_seq, chosen.system, tools, tuple(new.values()))

    def note_opened(self, opening: TurnOpening) -> None:
        """An opening is durable, and its prompts with it."""
        self._known.update({one.digest: one for one in opening.new})

    async def resume(self, view: ThreadView, scope: TurnScope) -> tuple[SystemPrompt, tuple[ToolSpec, ...]]:
        """The system text of a turn that was opened before, perhaps by another process, and the tools it has now."""
        tools = self._tools(scope)
        return await self._stored(view, view.base) or await self._present(view, scope, tools), tools

    def request(self, run: TurnRun, route: Route, *, tools: bool) -> tuple[ModelRequest, int]:
        """The next request of the open turn, fitted to the model's window, and the units by which `learn` judges it.

        Raises InvalidInput when nothing can fit.
        """
        view, agent, units = run.view, run.scope.agent, 0
        view.transcript.settle()
        if view.open.history:
            room = self.room(run, route)
            room = room.within(run.squeezed_to) if run.squeezed_to else room
            fitted = fit(view.tally, view.transcript.entries, room)
            messages = fitted.messages
            units = fitted.units if tools else 0  # without tools it teaches nothing
        else:
            messages = view.transcript.messages_of(view.turn)
        request = ModelRequest(
            model=route.model,
            system=run.system.text,
            messages=messages,
            tools=run.tools,
            max_output_tokens=_output_tokens(agent, route),
            temperature=agent.temperature,
            cache_key=view.thread,
            tool_choice="auto" if tools else "none",
        )
        return request, units

    def room(self, run: TurnRun, route: Route) -> TokenRoom:
        """How the model's window is shared out. Raises InvalidInput when the instructions fill it."""
        return room_for(
            self.settings,
            window_tokens=self._context_tokens or route.context_tokens,
            output_tokens=_output_tokens(run.scope.agent, route),
            prefix_units=self.meter.prefix(run.system.text, run.tools),
            factor=self.gauge(run, route).factor,
        )

    def clean(self, text: str) -> str:
        """The text without secrets, for the journal."""
        return self._executor.redactor.redact(text)

    def gauge(self, run: TurnRun, route: Route) -> Gauge:
        """What tells the tokens of this model's requests."""
        return Gauge(self.meter, self._calibration.factor(f"{route.model} {run.visible_threads}"))

    def learn(self, run: TurnRun, route: Route, units: int, usage: Usage) -> None:
        """Take in what the provider reports for a request of so many units."""
        self._calibration.learn(f"{route.model} {run.visible_threads}", units, usage.input_tokens)

    def calls(self, run: TurnRun) -> CallContext:
        """For whom and where the open turn's calls run."""
        view, scope = run.view, run.scope
        mounts = self.mounts(scope.agent, view.thread)
        for mount in mounts:  # made when first needed: most threads never use a tool
            if not mount.host.is_dir():
                mount.host.mkdir(parents=True, exist_ok=True)
        return CallContext(
            thread=view.thread,
            turn=view.turn,
            asker=scope.asker,
            agent=scope.agent,
            mounts=mounts,
            profile=self._profile_of(scope.agent, scope.asker),
            taint=view.taint,
            bounds=self._bounds(scope),
            purpose=Purpose(view.open.author, view.tainted_by, scope.caller, scope.speaks_in, scope.audience),
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

    async def _present(self, view: ThreadView, scope: TurnScope, tools: tuple[ToolSpec, ...]) -> SystemPrompt:
        """The system text as the files are now."""
        agent, person = scope.agent, scope.audience.person
        skills = skill_places(skill_roots(self._home, agent.home, view.thread))
        mounts = (Mount(agent.workspace, "/workspace", writable=True), *skills)
        inside = partial(self._executor.sandbox.inside, mounts=mounts)
        source_of = await self._tainted_files(person)
        return self._prompts.system(agent, view.thread, tools, inside, source_of, person)

    def _tools(self, scope: TurnScope) -> tuple[ToolSpec, ...]:
        """The tools as of the turn's start: what comes or goes meanwhile changes nothing of what the model is told."""
        return self._executor.specs(scope.agent, self._profile_of(scope.agent, scope.asker), *self._bounds(scope))

    def _bounds(self, scope: TurnScope) -> tuple[Profile, ...]:
        """The profiles of the turns above that are not this turn's own, as they hold for the asker."""
        if scope.caller is None:
            return ()
        own = self._profile_of(scope.agent, scope.asker)
        above = (
            self._profile_of(msgspec.structs.replace(scope.agent, name=agent, profile=profile), scope.asker)
            for profile, agent in scope.caller.bounds
        )
        return tuple(dict.fromkeys(profile for profile in above if profile is not own))

    async def _stored(self, view: ThreadView, digest: str) -> SystemPrompt | None:
        if not digest:
            return None
        found = self._known.get(digest)
        if found is None:
            body = await view.journal.prompt(digest)
            if body is None:
                return None
            found = self._known[digest] = decode_prompt(body)
        return found


def _output_tokens(agent: AgentSpec, route: Route) -> int:
    return min(agent.max_output_tokens, route.max_output_tokens or agent.max_output_tokens)


CONTEXT_LINES_MAX = 12
"""Most lines of one list; that there are more is said, and not how many: nobody has to count them all for it."""
LINE_CHARS_MAX = 240

_HEAD = "<context>\n(From Shoal, not from the person: how things stand now.)"
_TAIL = "</context>"


def volatile(
    now: datetime,
    *,
    others: Sequence[str] = (),
    processes: Sequence[str] = (),
    spend_left: str = "",
    memory_changes: str = "",
) -> str:
    """The trailing block. `others` and `processes` are one status line each, `spend_left` a short phrase.

    Names and texts in them come from outside: each is cut to a line of LINE_CHARS_MAX and cannot end the block.
    """
    parts = [_HEAD, f"Time: {now.astimezone(UTC):%Y-%m-%d %H:%M} UTC, {now.astimezone(UTC):%A}"]
    if others:
        parts.append(_bullets("You are also at work in", others))
    if processes:
        parts.append(_bullets("Processes you started", processes))
    if spend_left:
        parts.append(f"Left to spend: {_one_line(spend_left)}")
    if memory_changes:
        parts.append(f"Changed since your instructions above were written:\n{_contained(memory_changes)}")
    parts.append(_TAIL)
    return "\n".join(parts)


def _bullets(title: str, lines: Sequence[str]) -> str:
    shown = [f"- {_one_line(line)}" for line in lines[:CONTEXT_LINES_MAX]]
    if len(lines) > CONTEXT_LINES_MAX:
        shown.append("- and more")
    return "\n".join([f"{title}:", *shown])


def _one_line(text: str) -> str:
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    words = " ".join(text.split())
    return _contained(words if len(words) <= LINE_CHARS_MAX else f"{words[: LINE_CHARS_MAX - 1]}…")


def _contained(text: str) -> str:
    return text.replace("<context", "‹context").replace("</context", "‹/context")
