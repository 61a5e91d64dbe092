"""Build the model's input: the system text chosen when the turn starts, the transcript and the tools."""

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
    SystemPrompt,
    choose_prompts,
    decode_prompt,
    encode_prompt,
    runtime_lines,
)
from shoal.turn.run import TurnRun, TurnScope
from shoal.turn.skills import skill_locations, skill_mounts, skill_roots
from shoal.turn.thread import ThreadView
from shoal.turn.tokens import Calibration, Gauge, Meter

OWNER = Asker(trust="owner", user="owner")
"""Asker of requests that are not part of a turn."""
TOOLS_KNOWN_MAX = 32
"""Maximum number of tool sets whose JSON is cached. Each combination of agent and profile has one tool set."""
FITTED_MAX = 64
"""Maximum number of cached prefixes (instructions and tools) that were shortened for small windows."""
WHOLE_SHARE = 0.75
"""Maximum share of the input that instructions and tools may take without being shortened."""
FITTED_SHARE = 0.6
"""Share of the input to which larger instructions and tools are shortened."""


class Shares(NamedTuple):
    """The division of a model's window into instructions, conversation and answer."""

    window: int
    gauge: Gauge
    room: TokenRoom
    prefix: Prefix
    output_tokens: int


THREAD_LINE = "\n\nThis conversation is the thread `{}`."
"""Last line of the system text.

It follows the part that all threads of a channel share in the provider's cache, because it differs between threads. It
is not part of the stored text.
"""
EVENTS_AT_ONCE_MAX = 500
OLDEST_CHARS_MAX = 120


class ContextPart(msgspec.Struct, frozen=True):
    name: str
    bytes: int
    tokens: int


class ContextCosts(msgspec.Struct, frozen=True):
    """Token counts of a thread's next request."""

    thread: str
    agent: str
    model: str
    window_tokens: int
    output_tokens: int
    tokens: int
    """Estimated input tokens of the complete request."""
    parts: tuple[ContextPart, ...]
    found_tools: int
    """Number of tools that the request does not define but that the model can find by searching."""
    left_out: int
    """Number of messages omitted from the request."""
    fitted: bool
    """True if instructions and tools were shortened to fit the window."""
    room_tokens: int = 0
    """Size of the conversation, in tokens, above which the oldest messages are summarized or omitted."""
    oldest: str = ""
    """Beginning of the oldest message in the request."""


class TurnOpening(msgspec.Struct, frozen=True):
    """The system text and tools of a new turn, with the prompts to store."""

    started: TurnStarted
    expired_seq: int
    """Sequence number of the last event that left the rolling window, or 0 if none did."""
    system: SystemPrompt
    tools: Offer
    new: tuple[SystemPrompt, ...]
    """Prompts that might not be stored yet."""
    described: tuple[tuple[str, bytes], ...]
    """Tool definitions that are not stored yet."""

    @property
    def prompts(self) -> tuple[tuple[str, bytes], ...]:
        return (*((prompt.digest, encode_prompt(prompt)) for prompt in self.new), *self.described)


class ContextBuilder:
    """Builds model requests and the contexts of tool calls.

    - `spend_left`: describes the remaining budget if it is low and the audience may see it.
    - `tainted_files`: returns a function that maps a prompt file to the untrusted source that influenced it.
    - `activities`: background work that each turn's prompt lists.
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
        runtime = runtime_lines(executor.sandbox, config.sandbox.network)
        self.prompts = PromptBuilder(home, clock, runtime=runtime, traits=self.traits)
        self._context_tokens = config.model.context_tokens_max
        self._window = timedelta(hours=config.context.window_hours)
        self._calibration = Calibration()
        self._fitted = lru_cache(FITTED_MAX)(partial(fit_prefix, meter, traits=self.traits))
        self._known: WeakValueDictionary[str, SystemPrompt] = WeakValueDictionary()
        self._tools_stored: dict[int, tuple[Offer, str, bytes]] = {}
        self._described: set[str] = set()

    async def open(self, view: ThreadView, scope: TurnScope, prompt: Prompt) -> TurnOpening:
        agent, now = scope.agent, self._clock.now()
        expired_seq = view.transcript.expired(now - self._window) if self._window else 0
        base = announced = None
        if not expired_seq:
            base = await self._stored(view.journal, view.base)
            announced = await self._stored(view.journal, view.announced)
        tools = self._tools(scope)
        chosen = choose_prompts(base, announced, await self._present(view.thread, scope, tools))
        # Work in other threads on all machines, without text or names from untrusted people.
        within = scope.visible_threads
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
            activities=[
                (activity.title, await activity.for_prompt(agent.name, within, ACTIVITY_MAX))
                for activity in self.activities
            ],
            spend_left=await self._spend_left(view.thread, agent.name, scope.asker, scope.audience),
            changes=chosen.changes,
        )
        new = {
            prompt.digest: prompt for prompt in (chosen.system, chosen.announced) if prompt.digest not in self._known
        }
        described = tuple(row for row in (self._stored_tools(tools),) if row[0] not in self._described)
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

    @property
    def _parts(self) -> tuple[str, ...]:
        added = (part.name for part in self.prompts.parts)
        return ("system", "tools", "skills", "documents", *added, "summary", "transcript")

    def note_opened(self, opening: TurnOpening) -> None:
        """Record that the opening's prompts and tools are stored. Later turns do not store them again."""
        self._known.update({prompt.digest: prompt for prompt in opening.new})
        self._described.update(digest for digest, _ in opening.described)

    def _stored_tools(self, tools: Offer) -> tuple[str, bytes]:
        stored = self._tools_stored.get(id(tools))
        if stored is None or stored[0] is not tools:
            if len(self._tools_stored) >= TOOLS_KNOWN_MAX:
                self._tools_stored.clear()
                self._described.clear()
            stored = self._tools_stored[id(tools)] = tools, *stored_tools(tools.all)
        return stored[1:]

    async def resume(self, view: ThreadView, scope: TurnScope) -> tuple[SystemPrompt, Offer]:
        """Return the system text that an open turn began with, and the current tools.

        Another process may have opened the turn.
        """
        tools = self._tools(scope)
        return await self._stored(view.journal, view.base) or await self._present(view.thread, scope, tools), tools

    def request(self, run: TurnRun, route: Route, shares: Shares, *, tools: bool) -> tuple[ModelRequest, int]:
        """Build the open turn's next request. Also return its units, which `learn` compares with the reported usage.

        Sets `run.asked`.
        """
        view, agent, units, cut_to = run.view, run.scope.agent, 0, None
        view.transcript.close_open_calls()
        if view.open.history:
            room = shares.room.within(run.squeezed_to) if run.squeezed_to else shares.room
            fitted = fit(view.tally, view.transcript.entries, room)
            messages = fitted.messages
            cut_to = room if fitted.dropped or fitted.stubbed or fitted.shortened else None
            units = fitted.units if tools else 0  # The usage reported for a request without tools is not comparable.
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
        learnt = run.window_tokens or self._calibration.windows.get(_readers(route, run.scope.visible_threads), 0)
        run.asked = view.digests.mark(request, run.system.text, described, view.transcript, cut_to, learnt)
        return request, units

    def shares(self, run: TurnRun, route: Route) -> Shares:
        """Divide the model's window. Raises InvalidInput if even shortened instructions leave no space."""
        learnt, visible = run.window_tokens, run.scope.visible_threads
        return self._share_out(run.scope.agent, route, run.system, run.tools, learnt, visible)

    def _share_out(
        self, agent: AgentSpec, route: Route, system: SystemPrompt, tools: Offer, learnt: int = 0, visible: str = ""
    ) -> Shares:
        """Divide the model's window.

        `learnt` is a window size that this turn learned from an overflow. `visible` is the id prefix of the threads
        that the readers may see. Omit both outside a turn.
        """
        window, factor = self._window_of(route, learnt, visible), self._calibration.factor(_readers(route, visible))
        output = min(agent.max_output_tokens, route.max_output_tokens or agent.max_output_tokens, window // 4)
        prefix = Prefix(system.text, tools.listed, tools.deferred, self.meter.prefix(system.text, tools.listed))
        # Round the learned factor up to the next quarter, so that small changes do not alter the request's prefix.
        total = (window - reserved(self.settings, window, output)) / max(1.0, ceil(factor * 4) / 4)
        if prefix.units > WHOLE_SHARE * total:
            prefix = self._fitted(system, tools, int(FITTED_SHARE * total))
        room = room_for(
            self.settings, window_tokens=window, output_tokens=output, prefix_units=prefix.units, factor=factor
        )
        return Shares(window, Gauge(self.meter, factor), room, prefix, output)

    async def costs(self, thread: ThreadId, agent: AgentSpec, route: Route, store: Store) -> ContextCosts:
        """Measure the next request in a thread, as if the owner had written a message."""
        transcript, base, journal = Transcript(), "", store.journal
        window = await store.windows.window(thread)
        after = window.window_seq if window is not None else 0
        while events := await journal.events(thread, after, EVENTS_AT_ONCE_MAX):
            for event in events:
                transcript.add(event)
                if isinstance(event.data, TurnStarted):
                    base = event.data.system
                elif isinstance(event.data, Cleared | Compacted):
                    base = ""
            after = events[-1].seq
        transcript.close_open_calls()
        scope = TurnScope(agent, OWNER, Audience(everywhere=True, person="owner"))
        tools = self._tools(scope)
        system = await self._stored(journal, base) or await self._present(thread, scope, tools)
        shares = self._share_out(agent, route, system, tools)
        gauge = shares.gauge
        tally = Tally(self.meter)
        fitted = fit(tally, transcript.entries, shares.room)
        sections = shares.prefix.sections or tuple((section.part, section.text) for section in system.sections)
        texts: dict[str, list[str]] = {name: [] for name in self._parts}
        for part, text in sections:
            texts.setdefault(part, []).append(text)
        texts["system"].append(THREAD_LINE.format(thread))
        texts["tools"] = [
            text for tool in shares.prefix.tools for text in (tool.name, tool.description, tool.parameters)
        ]
        for message in fitted.messages:
            is_summary = isinstance(message, UserMessage) and message.text.startswith(SUMMARY_HEAD)
            calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
            written = (text for call in calls for text in (call.written_name, call.written_arguments))
            texts["summary" if is_summary else "transcript"] += [message.text, *written]
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
        """Build a request outside a turn, fitted to the model's window. Also return the gauge for its tokens.

        Set `thread` to repeat the request of a recorded thread. Raises InvalidInput if the instructions do not fit.
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
        """Describe the options that a new request would have, in the format of `RequestMark.options`.

        `window_tokens` is the learned window size, or 0.
        """
        window = self._context_tokens or route.context_tokens or WINDOW_TOKENS_DEFAULT
        quarter = min(window, window_tokens or window) // 4
        output = min(agent.max_output_tokens, route.max_output_tokens or agent.max_output_tokens, quarter)
        return options_of(route.model, output, "auto" if tools else "none", agent.temperature)

    def tools_of(self, agent: AgentSpec) -> Offer:
        return self._tools(TurnScope(agent, OWNER, Audience()))

    async def instructions(self, thread: ThreadId, agent: AgentSpec, tools: Offer) -> SystemPrompt:
        """Build the system text from the current files, without private memory."""
        return await self._present(thread, TurnScope(agent, OWNER, Audience()), tools)

    def clean(self, text: str) -> str:
        """Redact secrets before the text is journaled."""
        return self._executor.redactor.redact(text)

    def knows_window(self, route: Route) -> bool:
        return bool(self._context_tokens or route.context_tokens)

    def window(self, run: TurnRun, route: Route) -> int:
        """Return the window size in tokens: the configured or known size, or a smaller one learned from an overflow."""
        return self._window_of(route, run.window_tokens, run.scope.visible_threads)

    def _window_of(self, route: Route, learnt: int, visible: str) -> int:
        window = self._context_tokens or route.context_tokens or WINDOW_TOKENS_DEFAULT
        return min(window, learnt or self._calibration.windows.get(_readers(route, visible), window))

    def narrow_window(self, run: TurnRun, route: Route, stated_tokens: int, refused_tokens: int) -> bool:
        """Assume a smaller window for the rest of the turn after the provider rejected a request of `refused_tokens`.

        The new size is `stated_tokens`. If the provider stated none and the model's window is unknown, it is half of
        the rejected tokens. Returns False if neither gives a usable size.
        """
        window = self.window(run, route)
        if not WINDOW_TOKENS_MIN <= stated_tokens < window:
            stated_tokens = 0 if self.knows_window(route) else min(window, refused_tokens) // 2
        if stated_tokens < WINDOW_TOKENS_MIN:
            return False
        run.window_tokens = stated_tokens
        return True

    def learn(self, run: TurnRun, route: Route, units: int, reported_tokens: int) -> None:
        """Calibrate the gauge with the usage that the provider reported for `units`. If the provider reported none,
        `reported_tokens` is 0.

        Also stores a smaller window that the turn learned.
        """
        readers = _readers(route, run.scope.visible_threads)
        self._calibration.learn(readers, units, reported_tokens)
        if run.window_tokens:
            self._calibration.learn_window(readers, run.window_tokens)

    def calls(self, run: TurnRun) -> CallContext:
        view, scope = run.view, run.scope
        profile, *bounds = self._profiles(scope)
        mounts = self.mounts(scope.agent, view.thread)
        for mount in mounts:  # Create folders on first use: most threads never use a tool.
            ensure_folder(mount.host)
        return CallContext(
            thread=view.thread,
            turn=view.turn,
            asker=scope.asker,
            agent=scope.agent,
            mounts=mounts,
            profile=profile,
            taint=view.taint,
            bounds=tuple(bounds),
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
        """Convert a host path to the path that the agent's tools and commands use."""
        mounts = (
            Mount(agent.workspace, "/workspace", writable=True),
            Mount(self._home.attachments(thread), "/attachments"),
            *skill_locations(skill_roots(self._home, agent.home, thread)),
        )
        return self._executor.sandbox.inside(path, mounts)

    def mounts(self, agent: AgentSpec, thread: ThreadId) -> tuple[Mount, ...]:
        """Return the folders that the agent's tools and commands can reach, the workspace first."""
        return (
            Mount(agent.workspace, "/workspace", writable=True),
            Mount(self._home.scratch(thread), "/scratch", writable=True),
            Mount(self._home.attachments(thread), "/attachments"),
            Mount(self._home.shown_artifacts(thread), "/artifacts"),
            Mount(agent.home / "docs", "/docs"),
            *skill_mounts(skill_roots(self._home, agent.home, thread)),
        )

    async def _present(self, thread: ThreadId, scope: TurnScope, tools: Offer) -> SystemPrompt:
        agent, person = scope.agent, scope.audience.person
        source_of, inside = await self._tainted_files(person), partial(self.inside, agent, thread)
        return self.prompts.system(agent, thread, tools.all, inside, source_of, person)

    def _tools(self, scope: TurnScope) -> Offer:
        return self._executor.registry.offer(scope.agent.tools, hidden_by(self._profiles(scope)))

    def _profiles(self, scope: TurnScope) -> tuple[Profile, ...]:
        own, bounds = (
            self._profile_of(scope.agent, scope.asker),
            scope.caller.bounds if scope.caller is not None else (),
        )
        above = (
            self._profile_of(msgspec.structs.replace(scope.agent, name=agent, profile=profile), scope.asker)
            for profile, agent in bounds
        )
        return tuple(dict.fromkeys((own, *above)))

    async def _stored(self, journal: Journal, digest: str) -> SystemPrompt | None:
        if not digest:
            return None
        prompt = self._known.get(digest)
        if prompt is None:
            body = await journal.prompt(digest)
            if body is None:
                return None
            prompt = self._known[digest] = decode_prompt(body)
        return prompt


def _readers(route: Route, visible: str) -> str:
    """Return the calibration key of a model for one group of readers.

    Values learned from the texts of one group must not reach others.
    """
    return f"{route.provider.name}/{route.model} {visible}"
