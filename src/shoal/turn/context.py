"""Build what the model gets to see: the system text chosen at the turn's start, the transcript, the tools."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import lru_cache, partial
from math import ceil
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from shoal.kernel.agents import AgentSpec, Purpose, describe_state, describe_work
from shoal.kernel.clock import Clock
from shoal.kernel.events import Cleared, Compacted, TurnStarted
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, platform_of
from shoal.kernel.messages import AssistantMessage, ModelRequest, Prompt, UserMessage
from shoal.kernel.permissions import Asker, Audience
from shoal.kernel.ports import Mount, Route
from shoal.kernel.regular_files import ensure_folder
from shoal.kernel.settings import Config
from shoal.kernel.transcript import (
    CONTEXT_HEAD,
    SUMMARY_HEAD,
    Transcript,
    TranscriptEntry,
)
from shoal.kernel.zones import zone_named
from shoal.permissions.profiles import Profile, hidden_by
from shoal.store.journal import Journal
from shoal.store.store import Store
from shoal.tools.executor import CallContext, Executor
from shoal.tools.offer import Offer
from shoal.turn.activity import Activity
from shoal.turn.context_block import ACTIVITY_MAX, volatile
from shoal.turn.digests import options_of, stored_tools
from shoal.turn.fitting import (
    WINDOW_TOKENS_DEFAULT,
    WINDOW_TOKENS_MIN,
    Tally,
    TokenRoom,
    fit,
    reserved,
    room_for,
)
from shoal.turn.prefix import Prefix, fit_prefix
from shoal.turn.prompt import (
    PromptBuilder,
    PromptLimits,
    SystemPrompt,
    choose_prompts,
    decode_prompt,
    encode_prompt,
    runtime_lines,
)
from shoal.turn.run import TurnRun, TurnScope
from shoal.turn.skills import skill_mounts, skill_places, skill_roots
from shoal.turn.thread import ThreadView, chat_of
from shoal.turn.tokens import Calibration, Gauge, Meter

OWNER = Asker(trust="owner", user="owner")
"""Who asks where no turn does."""
TOOLS_KNOWN_MAX = 32
"""Sets of tools whose JSON is kept in memory; one is an agent's with a profile."""
FITTED_MAX = 64
"""Instructions fitted to small windows that are kept."""
WHOLE_SHARE = 0.75
"""Instructions and tools that take no more of the input are sent as they are."""
FITTED_SHARE = 0.6
"""Of the input, what they get where they would take more."""


class Shares(NamedTuple):
    """A model's window, what tells its tokens, and how the window is shared out: a request's room, what stands before
    the conversation, and the longest answer that is asked for."""

    window: int
    gauge: Gauge
    room: TokenRoom
    prefix: Prefix
    output_tokens: int


THREAD_LINE = "\n\nThis conversation is the thread `{}`."
"""Ends the system text. It differs between threads, so it follows the prefix that a channel's threads share in the
provider's cache. It is not part of the stored text."""
CONTEXT_PARTS = ("system", "tools", "skills", "documents", "memory", "summary", "transcript")
"""What a request is made of, in its order."""
_PART_OF = {"skills": "skills", "docs": "documents", "memory": "memory", "notes": "memory"}
EVENTS_AT_ONCE_MAX = 500
OLDEST_CHARS_MAX = 120
"""How much is told of the oldest message that is still sent."""


class ContextPart(msgspec.Struct, frozen=True):
    """What a part of a request takes."""

    name: str
    bytes: int
    tokens: int


class ContextCosts(msgspec.Struct, frozen=True):
    """What the next request of a thread takes, part by part. `tokens` are those of all its input; `found_tools` are not
    sent, and `left_out` messages neither; `fitted`: instructions and tools were more than the window has room for.

    Above `room_tokens` the oldest of the conversation is summarised or left out, first what begins with `oldest`.
    """

    thread: str
    agent: str
    model: str
    window_tokens: int
    output_tokens: int
    tokens: int
    parts: tuple[ContextPart, ...]
    found_tools: int
    left_out: int
    fitted: bool
    room_tokens: int = 0
    oldest: str = ""


class TurnOpening(msgspec.Struct, frozen=True):
    """What a turn opens with. `expired_seq` is where the rolling window now begins, 0 when it stays as it is; `new` are
    the prompts that are not known to be stored, and `described` the tools as they are stored, if they are not yet."""

    started: TurnStarted
    expired_seq: int
    system: SystemPrompt
    tools: Offer
    new: tuple[SystemPrompt, ...]
    described: tuple[tuple[str, bytes], ...]

    @property
    def prompts(self) -> tuple[tuple[str, bytes], ...]:
        """What is new, to be stored by its digests."""
        return (*((one.digest, encode_prompt(one)) for one in self.new), *self.described)


class ContextBuilder:
    """Builds requests and call contexts.

    `profile_of` gives the profile that holds for an agent and an asker; `spend_left` what is left to spend, where that
    is little and the audience may know it; `tainted_files` what tells the files of prompts that untrusted content had a
    hand in. `activities` are listed in the prompt of each turn.
    """

    def __init__(
        self,
        home: Home,
        store: Store,
        executor: Executor,
        clock: Clock,
        config: Config,
        meter: Meter,
        *,
        profile_of: Callable[[AgentSpec, Asker], Profile],
        spend_left: Callable[[ThreadId, str, Asker, Audience], Awaitable[str]],
        tainted_files: Callable[[str], Awaitable[Callable[[str | Path], str]]],
    ) -> None:
        self._home = home
        self._store = store
        self._executor = executor
        self.traits = executor.registry.traits
        self._clock = clock
        self._profile_of = profile_of
        self._spend_left = spend_left
        self._tainted_files = tainted_files
        self.activities: list[Activity] = []
        self.settings = config.context
        self.meter = meter
        limits = PromptLimits(notes_days=config.context.daily_notes_days)
        runtime = runtime_lines(executor.sandbox, config.sandbox.network)
        self.prompts = PromptBuilder(home, clock, limits, runtime=runtime, traits=self.traits)
        self._context_tokens = config.model.context_tokens_max
        self._window = timedelta(hours=config.context.window_hours)
        self._calibration = Calibration()
        self._fitted = lru_cache(FITTED_MAX)(partial(fit_prefix, meter, traits=self.traits))
        self._known: WeakValueDictionary[str, SystemPrompt] = WeakValueDictionary()
        self._tools_stored: dict[int, tuple[Offer, str, bytes]] = {}
        self._described: set[str] = set()

    async def open(self, view: ThreadView, scope: TurnScope, prompt: Prompt) -> TurnOpening:
        """Choose the system text of the turn that `prompt` starts and what is told beside it."""
        agent, now = scope.agent, self._clock.now()
        expired_seq = view.transcript.expired(now - self._window) if self._window else 0
        base = announced = None
        if not expired_seq:
            base = await self._stored(view.journal, view.base)
            announced = await self._stored(view.journal, view.announced)
        tools = self._tools(scope)
        chosen = choose_prompts(base, announced, await self._present(view.thread, scope, tools))
        chat = chat_of(view.thread, scope.caller)
        # What else it does, on all machines: Shoal's own words, so none of anybody who is not trusted, and no name.
        within = scope.audience.within(chat)
        works = await self._store.registry.at_work(agent.name, ACTIVITY_MAX, within=within)
        text = volatile(
            now.astimezone(zone_named(scope.timezone)),
            others=[
                f"{work.thread}: {describe_work(work, now)}"
                if work.trusted
                else f"a conversation on {platform_of(work.thread)}: {describe_state(work, now)}"
                for work in works
                if work.thread != view.thread
            ],
            activities=[(one.title, await one.for_prompt(agent.name, within, ACTIVITY_MAX)) for one in self.activities],
            spend_left=await self._spend_left(view.thread, agent.name, scope.asker, scope.audience),
            memory_changes=chosen.changes,
        )
        new = {one.digest: one for one in (chosen.system, chosen.announced) if one.digest not in self._known}
        described = tuple(one for one in (self._stored_tools(tools),) if one[0] not in self._described)
        started = TurnStarted(
            agent=agent.name,
            model=prompt.model or agent.model,
            context=text,
            history=prompt.history,
            system=chosen.system.digest,
            told=chosen.announced.digest,
            tainted_by=chosen.tainted_by,
            asker=scope.asker,
            audience=scope.audience,
        )
        return TurnOpening(started, expired_seq, chosen.system, tools, tuple(new.values()), described)

    def note_opened(self, opening: TurnOpening) -> None:
        """An opening is durable, and its prompts and tools with it."""
        self._known.update({one.digest: one for one in opening.new})
        self._described.update(digest for digest, _ in opening.described)

    def _stored_tools(self, tools: Offer) -> tuple[str, bytes]:
        """Tools as the journal keeps them; the registry makes one offer of them while none changes."""
        found = self._tools_stored.get(id(tools))
        if found is None or found[0] is not tools:
            if len(self._tools_stored) >= TOOLS_KNOWN_MAX:
                self._tools_stored.clear()
                self._described.clear()
            found = self._tools_stored[id(tools)] = tools, *stored_tools(tools.all)
        return found[1:]

    async def resume(self, view: ThreadView, scope: TurnScope) -> tuple[SystemPrompt, Offer]:
        """The system text of a turn that was opened before, perhaps by another process, and the tools it has now."""
        tools = self._tools(scope)
        return await self._stored(view.journal, view.base) or await self._present(view.thread, scope, tools), tools

    def request(self, run: TurnRun, route: Route, shares: Shares, *, tools: bool) -> tuple[ModelRequest, int]:
        """The next request of the open turn, fitted to its share, and the units by which `learn` judges it.

        The run has its mark then. Raises InvalidInput when nothing can fit.
        """
        view, agent, units, cut_to = run.view, run.scope.agent, 0, None
        view.transcript.settle()
        if view.open.history:
            room = shares.room.within(run.squeezed_to) if run.squeezed_to else shares.room
            fitted = fit(view.tally, view.transcript.entries, room)
            messages = fitted.messages
            cut_to = room if fitted.dropped or fitted.stubbed or fitted.shortened else None
            units = fitted.units if tools else 0  # without tools it teaches nothing
        else:
            messages = view.transcript.messages_of(view.turn)
        instructions = shares.prefix.system
        request = ModelRequest(
            model=route.model,
            system=f"{instructions}{THREAD_LINE.format(view.thread)}",
            shared_chars=len(instructions),
            messages=messages,
            tools=shares.prefix.tools,
            max_output_tokens=shares.output_tokens,
            temperature=agent.temperature,
            cache_key=view.thread,
            tool_choice="auto" if tools else "none",
            further=shares.prefix.further,
        )
        described = self._stored_tools(run.tools)[0]
        learnt = run.window_tokens or self._calibration.windows.get(_readers(route, run.visible_threads), 0)
        run.asked = view.digests.mark(request, run.system.text, described, view.transcript, cut_to, learnt)
        return request, units

    def shares(self, run: TurnRun, route: Route) -> Shares:
        """How the model's window is shared out. Raises InvalidInput when not even fitted instructions leave room."""
        learnt, visible = run.window_tokens, run.visible_threads
        return self._share_out(run.scope.agent, route, run.system, run.tools, learnt, visible)

    def _share_out(
        self, agent: AgentSpec, route: Route, system: SystemPrompt, tools: Offer, learnt: int = 0, visible: str = ""
    ) -> Shares:
        """The same for whoever sees threads that begin with `visible`; `learnt` is what was just learnt of the window.
        Without these it is for a request of no turn."""
        window, factor = self._window_of(route, learnt, visible), self._calibration.factor(_readers(route, visible))
        output = min(agent.max_output_tokens, route.max_output_tokens or agent.max_output_tokens, window // 4)
        prefix = Prefix(system.text, tools.listed, tools.deferred, self.meter.prefix(system.text, tools.listed))
        # What is learnt of a model changes it in steps, so that requests still begin with the same bytes.
        total = (window - reserved(self.settings, window, output)) / max(1.0, ceil(factor * 4) / 4)
        if prefix.units > WHOLE_SHARE * total:
            prefix = self._fitted(system, tools, int(FITTED_SHARE * total))
        room = room_for(
            self.settings, window_tokens=window, output_tokens=output, prefix_units=prefix.units, factor=factor
        )
        return Shares(window, Gauge(self.meter, factor), room, prefix, output)

    async def costs(self, thread: ThreadId, agent: AgentSpec, route: Route, store: Store) -> ContextCosts:
        """What the owner's next request of a thread would carry, and what each part takes; that of a first one, where
        nothing was said there."""
        transcript, base, journal = Transcript(), "", store.journal
        window = await store.snapshots.window(thread)
        after = window.window_seq if window is not None else 0
        while events := await journal.events(thread, after, EVENTS_AT_ONCE_MAX):
            for event in events:
                transcript.add(event)
                if isinstance(event.data, TurnStarted):
                    base = event.data.system
                elif isinstance(event.data, Cleared | Compacted):
                    base = ""
            after = events[-1].seq
        transcript.settle()
        scope = TurnScope(agent, OWNER, Audience(everywhere=True, person="owner"))
        tools = self._tools(scope)
        system = await self._stored(journal, base) or await self._present(thread, scope, tools)
        shares = self._share_out(agent, route, system, tools)
        gauge = shares.gauge
        tally = Tally(self.meter)
        fitted = fit(tally, transcript.entries, shares.room)
        sections = shares.prefix.sections or tuple((one.name, one.text) for one in system.sections)
        texts: dict[str, list[str]] = {name: [] for name in CONTEXT_PARTS}
        for name, text in sections:
            texts[_PART_OF.get(name.partition(" ")[0], "system")].append(text)
        texts["system"].append(THREAD_LINE.format(thread))
        texts["tools"] = [text for one in shares.prefix.tools for text in (one.name, one.description, one.parameters)]
        for message in fitted.messages:
            is_summary = isinstance(message, UserMessage) and message.text.startswith(SUMMARY_HEAD)
            calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
            part = texts["summary" if is_summary else "transcript"]
            part += [message.text, *(text for call in calls for text in (call.written_name, call.written_arguments))]
        oldest = next(filter(str.strip, texts["transcript"]), "")
        return ContextCosts(
            thread=thread,
            agent=agent.name,
            model=agent.model,
            window_tokens=shares.window,
            output_tokens=shares.output_tokens,
            tokens=round(fitted.units * gauge.factor),
            parts=tuple(
                ContextPart(name, sum(len(text.encode()) for text in part), round(sum(map(gauge.text, part))))
                for name, part in texts.items()
            ),
            found_tools=len(shares.prefix.further),
            left_out=fitted.dropped,
            fitted=bool(shares.prefix.sections),
            room_tokens=round(shares.room.events * gauge.factor),
            oldest=oldest.partition(CONTEXT_HEAD)[0].strip()[:OLDEST_CHARS_MAX],
        )

    def request_of(
        self,
        entries: Sequence[TranscriptEntry],
        agent: AgentSpec,
        route: Route,
        system: SystemPrompt,
        tools: Offer,
        thread: str = "",
    ) -> tuple[ModelRequest, Gauge]:
        """Build a request outside a turn, fitted to the model's window, and the gauge for its tokens.

        `thread` is the recorded thread that it repeats. Raises InvalidInput when nothing fits.
        """
        shares = self._share_out(agent, route, system, tools)
        request = ModelRequest(
            model=route.model,
            system=f"{shares.prefix.system}{THREAD_LINE.format(thread) if thread else ''}",
            messages=fit(Tally(self.meter), entries, shares.room).messages,
            tools=shares.prefix.tools,
            max_output_tokens=shares.output_tokens,
            temperature=agent.temperature,
            further=shares.prefix.further,
        )
        return request, shares.gauge

    def options(self, agent: AgentSpec, route: Route, window_tokens: int, *, tools: bool) -> str:
        """What a request asks for beside its messages, as marks have it; `window_tokens` if that was learnt."""
        window = self._context_tokens or route.context_tokens or WINDOW_TOKENS_DEFAULT
        quarter = min(window, window_tokens or window) // 4
        output = min(agent.max_output_tokens, route.max_output_tokens or agent.max_output_tokens, quarter)
        return options_of(route.model, output, "auto" if tools else "none", agent.temperature)

    def tools_of(self, agent: AgentSpec) -> Offer:
        """The tools that the agent has for the owner."""
        return self._tools(TurnScope(agent, OWNER, Audience()))

    async def instructions(self, thread: ThreadId, agent: AgentSpec, tools: Offer) -> SystemPrompt:
        """The system text as the files are now, with nobody's private memory."""
        return await self._present(thread, TurnScope(agent, OWNER, Audience()), tools)

    def clean(self, text: str) -> str:
        """The text without secrets, for the journal."""
        return self._executor.redactor.redact(text)

    def knows_window(self, route: Route) -> bool:
        """Whether the model's window is known, or set in the configuration."""
        return bool(self._context_tokens or route.context_tokens)

    def window(self, run: TurnRun, route: Route) -> int:
        """The model's window: what is configured or known of it, unless its provider refused less."""
        return self._window_of(route, run.window_tokens, run.visible_threads)

    def _window_of(self, route: Route, learnt: int, visible: str) -> int:
        window = self._context_tokens or route.context_tokens or WINDOW_TOKENS_DEFAULT
        return min(window, learnt or self._calibration.windows.get(_readers(route, visible), window))

    def narrow_window(self, run: TurnRun, route: Route, stated_tokens: int, refused_tokens: int) -> bool:
        """Take the window for smaller for the rest of the turn, after the provider refused a request of so many tokens:
        for what it states, or for half of that where nothing is known. False where that is no help."""
        window = self.window(run, route)
        if not WINDOW_TOKENS_MIN <= stated_tokens < window:
            stated_tokens = 0 if self.knows_window(route) else min(window, refused_tokens) // 2
        if stated_tokens < WINDOW_TOKENS_MIN:
            return False
        run.window_tokens = stated_tokens
        return True

    def learn(self, run: TurnRun, route: Route, units: int, reported_tokens: int) -> None:
        """Update the gauge from a report for `units` (0: no report), and the window from the provider's limit."""
        readers = _readers(route, run.visible_threads)
        self._calibration.learn(readers, units, reported_tokens)
        if run.window_tokens:
            self._calibration.learn_window(readers, run.window_tokens)

    def calls(self, run: TurnRun) -> CallContext:
        """For whom and where the open turn's calls run."""
        view, scope = run.view, run.scope
        mounts = self.mounts(scope.agent, view.thread)
        for mount in mounts:  # made when first needed: most threads never use a tool
            ensure_folder(mount.host)
        return CallContext(
            thread=view.thread,
            turn=view.turn,
            asker=scope.asker,
            agent=scope.agent,
            mounts=mounts,
            profile=self._profile_of(scope.agent, scope.asker),
            taint=view.taint,
            bounds=self._bounds(scope),
            purpose=Purpose(
                view.open.author,
                view.tainted_by,
                scope.caller,
                scope.speaks_in,
                scope.audience,
                view.with_known_links,
            ),
            timezone=scope.timezone,
            given=view.given,
        )

    def inside(self, agent: AgentSpec, thread: ThreadId, path: Path) -> str:
        """The path by which the agent's tools and commands know a host path."""
        mounts = (
            Mount(agent.workspace, "/workspace", writable=True),
            Mount(self._home.attachments(thread), "/attachments"),
            *skill_places(skill_roots(self._home, agent.home, thread)),
        )
        return self._executor.sandbox.inside(path, mounts)

    def mounts(self, agent: AgentSpec, thread: ThreadId) -> tuple[Mount, ...]:
        """What the agent's commands and file tools reach, first the workspace."""
        return (
            Mount(agent.workspace, "/workspace", writable=True),
            Mount(self._home.scratch(thread), "/scratch", writable=True),
            Mount(self._home.attachments(thread), "/attachments"),
            Mount(self._home.shown_artifacts(thread), "/artifacts"),
            Mount(agent.home / "docs", "/docs"),
            *skill_mounts(skill_roots(self._home, agent.home, thread)),
        )

    async def _present(self, thread: ThreadId, scope: TurnScope, tools: Offer) -> SystemPrompt:
        """The system text as the files are now."""
        agent, person = scope.agent, scope.audience.person
        source_of, inside = await self._tainted_files(person), partial(self.inside, agent, thread)
        return self.prompts.system(agent, thread, tools.all, inside, source_of, person)

    def _tools(self, scope: TurnScope) -> Offer:
        """The tools as of the turn's start: what comes or goes meanwhile changes nothing of what the model is told."""
        profiles = self._profile_of(scope.agent, scope.asker), *self._bounds(scope)
        return self._executor.registry.offer(scope.agent.tools, hidden_by(profiles))

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

    async def _stored(self, journal: Journal, digest: str) -> SystemPrompt | None:
        if not digest:
            return None
        found = self._known.get(digest)
        if found is None:
            body = await journal.prompt(digest)
            if body is None:
                return None
            found = self._known[digest] = decode_prompt(body)
        return found


def _readers(route: Route, visible: str) -> str:
    """A model and those who may read what it is sent: what is learnt of it is for them alone."""
    return f"{route.provider.name}/{route.model} {visible}"
