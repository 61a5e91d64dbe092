"""Compare a model with recorded calls: select the calls, estimate the cost, ask the model, and store its answers.

Requests are rebuilt from the journal, as in a replay, and fitted to the other model's context window. No tool runs.
Each answer is stored when it arrives, so an interrupted comparison continues with the unanswered calls.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec

from shoal.agents.registry import AgentRegistry
from shoal.features.evals.answers import (
    STEPS_MAX,
    Comparison,
    Difference,
    ModelAnswer,
    StepLocation,
    Wanted,
    difference,
)
from shoal.features.evals.store import ComparisonStore, ceiling_of
from shoal.kernel.agents import AgentSpec
from shoal.kernel.clock import Clock
from shoal.kernel.errors import InvalidInput, NotFound
from shoal.kernel.events import Event
from shoal.kernel.ids import ThreadId, TurnId, is_child, parse_thread_id
from shoal.kernel.messages import ModelFailed, ModelRequest, Usage
from shoal.kernel.permissions import Asker, Audience
from shoal.kernel.ports import Route
from shoal.kernel.records import Ceiling, ThreadInfo
from shoal.permissions.profiles import Profiles, hidden
from shoal.store.store import Store
from shoal.tools.offer import Offer, offer, split, unwrapped
from shoal.turn.context import ContextBuilder
from shoal.turn.digests import stored_specs
from shoal.turn.prompt import PromptSection, SystemPrompt, assemble, decode_prompt
from shoal.turn.replay import read_branch, recorded_steps
from shoal.turn.spending import Charge, Spending
from shoal.turn.tokens import Gauge

if TYPE_CHECKING:
    from shoal.services import Services

AT_ONCE = 4
FAILED_MAX = 3
"""Number of consecutive rounds without a successful call after which the comparison stops."""
THREADS_AT_ONCE = 100
ASKED_CHARS = 200
MODEL_STEP = "model "
"""Prefix in the description of a step that called a model."""
OWNERS = Audience(everywhere=True)


class RecordedTurn(NamedTuple):
    began_at: datetime
    thread_began_at: datetime
    calls: list[StepLocation]


class AskedStep(NamedTuple):
    """A recorded call and the request for the other model. `unfit` is the reason why the request cannot be built, or
    empty.
    """

    place: StepLocation
    number: int
    asked: str
    model: str
    recorded: ModelAnswer
    request: ModelRequest | None
    gauge: Gauge
    unfit: str


class ComparisonState(msgspec.Struct, frozen=True):
    """Progress of a comparison and an estimate for the remaining calls.

    `done`: number of answered calls.
    `usd`: cost so far, or null if a price is unknown.
    `estimated_tokens`, `estimated_usd`: estimate for the remaining calls. Set only when the comparison is planned.
    `left_out`: number of calls skipped because their thread or instructions no longer exist.
    """

    id: str
    created_at: datetime
    model: str
    selection: str
    profile: str
    has_system: bool
    runs: int
    usd_max: float
    turns: int
    steps: int
    calls: int
    done: int
    usd: float | None
    estimated_tokens: int = 0
    estimated_usd: float | None = 0.0
    left_out: int = 0


class ComparedAnswer(msgspec.Struct, frozen=True):
    """Answer from one run, and how it differs from the recorded answer."""

    run: int
    difference: Difference
    answer: ModelAnswer


class ComparedStep(msgspec.Struct, frozen=True):
    """A recorded call and the other model's answers.

    `number`: position of the call in its turn.
    `asked`: beginning of the message that started the turn.
    """

    thread: ThreadId
    turn: TurnId
    seq: int
    number: int
    agent: str
    asked: str
    model: str
    recorded: ModelAnswer
    answers: tuple[ComparedAnswer, ...]


class ComparisonProgress(msgspec.Struct, frozen=True):
    """Event that a running comparison sends after each call. `stopped` is the reason if the comparison stopped
    early.
    """

    done: int
    calls: int
    usd: float | None
    thread: str = ""
    seq: int = 0
    run: int = 0
    difference: Difference = "same"
    stopped: str = ""


class Comparisons(msgspec.Struct, frozen=True, eq=False):
    """Service for comparisons. For an agent that no longer exists, `spec_of` returns the default agent."""

    store: Store
    rows: ComparisonStore
    context: ContextBuilder
    spending: Spending
    profiles: Profiles
    clock: Clock
    spec_of: Callable[[str], AgentSpec]

    @classmethod
    def of(cls, services: "Services") -> "Comparisons":
        def spec_of(name: str) -> AgentSpec:
            return services[AgentRegistry].spec(
                name if services[AgentRegistry].exists(name) else services[AgentRegistry].defaults.agent
            )

        rows = ComparisonStore(services[Store].driver, services[Clock])
        return cls(
            services[Store],
            rows,
            services[ContextBuilder],
            services[Spending],
            services[Profiles],
            services[Clock],
            spec_of,
        )

    async def begin(self, wanted: Wanted, usd_max: float) -> ComparisonState:
        """Select the calls, store the comparison and estimate its cost. Does not call the model.

        The same selection has the same id, so earlier answers are reused. Raises NotFound if no calls match, and
        InvalidInput.
        """
        if sum(map(bool, (wanted.thread, wanted.last, wanted.tag))) != 1:
            raise InvalidInput("Specify exactly one of these: a thread, a number of recent turns, or a tag.")
        route = self.spending.models.route(wanted.model)
        if wanted.profile:
            self.profiles.check(wanted.profile)
        steps = await self._select(wanted)
        if not steps:
            raise NotFound(f"Shoal found no model calls in {wanted.selection}.")
        is_priced = self.spending.models.usd(route, Usage(1, 1)) is not None
        if usd_max and not is_priced:
            raise InvalidInput(
                f"The price of {route.model} is unknown, so Shoal cannot enforce a cost limit. Use --usd-max 0 for no "
                "limit."
            )
        question = msgspec.structs.replace(wanted, runs=1)
        id = hashlib.blake2b(msgspec.json.encode(question), digest_size=8).hexdigest()
        comparison = Comparison(id, self.clock.now(), wanted, usd_max, tuple(steps))
        await self.rows.put(comparison)
        comparison = await self.get(id)
        asked, left_out = await self._prepare(comparison)
        answers = await self.rows.answers(id)
        tokens, usd = 0, 0.0
        for step in asked:
            for run in range(1, wanted.runs + 1):
                known = answers.get((step.place.thread, step.place.seq, run))
                if step.request is None or (known is not None and not known.failed):
                    continue
                usage = Usage(step.gauge.request(step.request), step.recorded.usage.output_tokens)
                tokens += usage.input_tokens + usage.output_tokens
                usd += self.spending.models.usd(route, usage) or 0.0
        state = await self.state(comparison)
        return msgspec.structs.replace(
            state, estimated_tokens=tokens, estimated_usd=usd if is_priced else None, left_out=left_out
        )

    async def get(self, id: str) -> Comparison:
        """Return a comparison. Raises NotFound."""
        comparison = await self.rows.get(id)
        if comparison is None:
            raise NotFound(f"Comparison {id[:40]} does not exist. Run `shoal compare` to create one.")
        return comparison

    async def state(self, comparison: Comparison) -> ComparisonState:
        wanted, answers = comparison.wanted, await self.rows.answers(comparison.id)
        places = {(step.thread, step.seq) for step in comparison.steps}
        done = [
            answer
            for (thread, seq, run), answer in answers.items()
            if (thread, seq) in places and run <= wanted.runs and not answer.failed
        ]
        return ComparisonState(
            id=comparison.id,
            created_at=comparison.created_at,
            model=wanted.model,
            selection=wanted.selection,
            profile=wanted.profile,
            has_system=bool(wanted.system),
            runs=wanted.runs,
            usd_max=comparison.usd_max,
            turns=len({(step.thread, step.turn) for step in comparison.steps}),
            steps=len(comparison.steps),
            calls=len(comparison.steps) * wanted.runs,
            done=len(done),
            usd=total(answer.usd for answer in done),
        )

    async def run(self, comparison: Comparison, asker: Asker) -> AsyncGenerator[ComparisonProgress]:
        """Send the unanswered calls, AT_ONCE at a time. Closing the generator cancels calls in flight. Stored answers
        are kept.
        """
        wanted, store = comparison.wanted, self.rows
        route = self.spending.models.route(wanted.model)
        asked, _ = await self._prepare(comparison)
        answers = await store.answers(comparison.id)
        open_calls = [
            (one, run)
            for run in range(1, wanted.runs + 1)
            for one in asked
            if (known := answers.get((one.place.thread, one.place.seq, run))) is None or known.failed
        ]
        state = await self.state(comparison)
        done, usd, failed_rounds = state.done, state.usd, 0
        for at in range(0, len(open_calls), AT_ONCE):
            batch = open_calls[at : at + AT_ONCE]
            answers_so_far: dict[int, ModelAnswer] = {}
            stopped: list[str] = []

            async def ask(
                number: int, step: AskedStep, run: int, answers: dict[int, ModelAnswer], stopped: list[str]
            ) -> None:
                answer, refused = await self._ask(comparison, route, step, run, asker)
                if refused:
                    stopped.append(refused)
                else:
                    answers[number] = answer

            async with anyio.create_task_group() as group:
                for number, (step, run) in enumerate(batch):
                    group.start_soon(ask, number, step, run, answers_so_far, stopped)
            for number, answer in sorted(answers_so_far.items()):
                step, run = batch[number]
                if not answer.failed:
                    done += 1
                    usd = None if usd is None or answer.usd is None else usd + answer.usd
                place, differs = step.place, difference(step.recorded, answer)
                yield ComparisonProgress(done, state.calls, usd, place.thread, place.seq, run, differs)
            failed_rounds = (
                failed_rounds + 1 if answers_so_far and all(answer.failed for answer in answers_so_far.values()) else 0
            )
            if failed_rounds >= FAILED_MAX:
                last = next(answer.failed for answer in answers_so_far.values())
                stopped.append(f"{route.model} keeps failing: {last} Run the same command to continue.")
            if stopped:
                yield ComparisonProgress(done, state.calls, usd, stopped=stopped[0])
                return

    async def detail(self, comparison: Comparison) -> list[ComparedStep]:
        """Return the recorded calls with their answers. Omits calls in deleted threads."""
        answers = await self.rows.answers(comparison.id)
        asked, _ = await self._prepare(comparison, requests=False)
        steps: list[ComparedStep] = []
        for step in asked:
            compared: list[ComparedAnswer] = []
            for run in range(1, comparison.wanted.runs + 1):
                answer = answers.get((step.place.thread, step.place.seq, run))
                if answer is not None:
                    compared.append(ComparedAnswer(run, difference(step.recorded, answer), answer))
            place = step.place
            steps.append(
                ComparedStep(
                    place.thread, place.turn, place.seq, step.number, place.agent, step.asked, step.model,
                    step.recorded, tuple(compared),
                )
            )  # fmt: skip
        return steps

    # ---- selecting calls ----

    async def _select(self, wanted: Wanted) -> list[StepLocation]:
        """Return the selected calls, oldest first. If there are more than STEPS_MAX, return the newest."""
        turns: dict[TurnId, RecordedTurn] = {}

        if wanted.thread:
            await self._add_turns(turns, parse_thread_id(wanted.thread))
        elif wanted.tag:
            named = re.compile(rf"(?<!\w)#{re.escape(wanted.tag)}(?!\w)", re.IGNORECASE)
            for archived in (False, True):
                async for info in self._threads(archived=archived):
                    if named.search(info.title):
                        await self._add_turns(turns, info.thread)
            if not turns:
                raise NotFound(
                    f"No thread has #{wanted.tag} in its title. Add the tag to a title: "
                    f'`shoal threads rename ID "Its title #{wanted.tag}"`.'
                )
        else:
            async for info in self._threads(archived=False):
                turns = _newest(turns, wanted.last)
                if len(turns) == wanted.last and next(iter(turns.values())).began_at >= info.updated_at:
                    break  # all remaining threads are older
                if not is_child(info.thread):
                    await self._add_turns(turns, info.thread)
        return [place for turn in _newest(turns, wanted.last).values() for place in turn.calls][-STEPS_MAX:]

    async def _threads(self, *, archived: bool) -> AsyncGenerator[ThreadInfo]:
        before: datetime | None = None
        while page := await self.store.journal.threads(THREADS_AT_ONCE, before=before, archived=archived):
            for info in page:
                yield info
            before = page[-1].updated_at

    async def _add_turns(self, turns: dict[TurnId, RecordedTurn], thread: ThreadId) -> None:
        """Add the turns that called a model. A turn copied by a fork counts only in the original thread."""
        info, events = await read_branch(self.store.journal, thread)
        turns_read: dict[TurnId, RecordedTurn] = {}
        for step in recorded_steps(events):
            place = StepLocation(thread, step.turn, step.seq, step.agent)
            turns_read.setdefault(step.turn, RecordedTurn(step.started_at, info.created_at, [])).calls.append(place)
        for id, turn in turns_read.items():
            if id not in turns or turn.thread_began_at < turns[id].thread_began_at:
                turns[id] = turn

    # ---- requests ----

    async def _prepare(self, comparison: Comparison, *, requests: bool = True) -> tuple[list[AskedStep], int]:
        """Return the calls to repeat, and the number of calls whose thread or instructions no longer exist."""
        by_thread: dict[ThreadId, set[int]] = {}
        for place in comparison.steps:
            by_thread.setdefault(place.thread, set()).add(place.seq)
        asked_steps: dict[tuple[ThreadId, int], AskedStep] = {}
        for thread, seqs in by_thread.items():
            try:
                _, events = await read_branch(self.store.journal, thread)
            except NotFound:  # the thread was deleted
                continue
            for step in await self._prepare_thread(comparison.wanted, thread, events, seqs, requests=requests):
                asked_steps[step.place.thread, step.place.seq] = step
        chosen = [
            asked_steps[step.thread, step.seq] for step in comparison.steps if (step.thread, step.seq) in asked_steps
        ]
        return chosen, len(comparison.steps) - len(chosen)

    async def _prepare_thread(
        self, wanted: Wanted, thread: ThreadId, events: list[Event], seqs: Collection[int], *, requests: bool
    ) -> list[AskedStep]:
        timings = {
            (step.turn, step.step.number): step.step
            for step in await self.store.journal.steps(thread)
            if step.step.description.startswith(MODEL_STEP)
        }
        models = self.spending.models
        route = models.route(wanted.model)
        systems, offers = await self._known(wanted, events, seqs) if requests else ({}, {})

        def build() -> list[AskedStep]:
            built: list[AskedStep] = []
            for step in recorded_steps(events):
                if step.seq not in seqs:
                    continue
                request, gauge, unfit = None, Gauge(), ""
                if requests:
                    system, tools = systems[step.system], offers[step.agent, step.tools]
                    if system is None:
                        continue
                    try:
                        agent = self.spec_of(step.agent)
                        request, gauge = self.context.request_of(step.entries, agent, route, system, tools, thread)
                    except InvalidInput as error:
                        unfit = str(error)
                place = StepLocation(thread, step.turn, step.seq, step.agent)
                message, timing, usd = step.said, timings.get((step.turn, step.number)), None
                with suppress(InvalidInput):  # the recorded model's provider may no longer be configured
                    named = timing.description.removeprefix(MODEL_STEP) if timing is not None else message.model
                    usd = models.usd(models.route(named), message.usage)
                seconds = timing.duration_ms / 1000 if timing is not None else None
                recorded = ModelAnswer(message.text, message.tool_calls, message.stop, message.usage, usd, seconds)
                asked = " ".join(step.asked.split())[:ASKED_CHARS]
                built.append(AskedStep(place, step.number, asked, message.model, recorded, request, gauge, unfit))
            return built

        return await asyncio.to_thread(build)

    async def _known(
        self, wanted: Wanted, events: list[Event], seqs: Collection[int]
    ) -> tuple[dict[str, SystemPrompt | None], dict[tuple[str, str], Offer]]:
        """Load system prompts by digest, and tools by agent and digest. A system prompt that no longer exists is
        None.
        """
        journal, systems, tools = self.store.journal, dict[str, SystemPrompt | None](), dict[tuple[str, str], Offer]()
        given = assemble([PromptSection("prompt", wanted.system)]) if wanted.system else None
        for step in recorded_steps(events):
            if step.seq not in seqs:
                continue
            if step.system not in systems:
                body = await journal.prompt(step.system) if given is None else None
                systems[step.system] = given or (decode_prompt(body) if body is not None else None)
            if (step.agent, step.tools) not in tools:
                agent, body = self.spec_of(step.agent), await journal.prompt(step.tools)
                specs = stored_specs(body) if body is not None else self.context.tools_of(agent).all
                if wanted.profile:
                    profile = self.profiles.get(wanted.profile)
                    specs = tuple(spec for spec in specs if not hidden(profile, spec.name))
                tools[step.agent, step.tools] = offer(specs, ()) if agent.tools else split(specs, self.context.traits)
        return systems, tools

    # ---- asking the model ----

    async def _ask(
        self, comparison: Comparison, route: Route, step: AskedStep, run: int, asker: Asker
    ) -> tuple[ModelAnswer, str]:
        """Send one call and store the answer. Return the answer, and the reason if a limit prevented the call."""
        place, wanted, usd_max = step.place, comparison.wanted, comparison.usd_max
        began = self.clock.monotonic()
        if step.request is None:
            answer = ModelAnswer(failed=step.unfit)
        else:
            ceiling = Ceiling(ceiling_of(comparison.id), "", usd_max) if usd_max else None
            id = f"{ceiling_of(comparison.id)}:{self.clock.new_id()}"
            charge = Charge(
                id, wanted.model, ThreadId(""), TurnId(""), place.agent, asker, audience=OWNERS, ceiling=ceiling
            )
            refused = await self.spending.reserve(charge, route, step.request, step.gauge)
            if refused:
                return ModelAnswer(), refused
            outcome = await self.spending.reserved(charge, route, step.request, step.gauge)
            if isinstance(outcome, ModelFailed):
                answer = ModelAnswer(failed=self.context.clean(outcome.message))
            else:
                answer = ModelAnswer(
                    self.context.clean(outcome.message.text),
                    tuple(map(unwrapped, outcome.message.tool_calls)),
                    outcome.stop,
                    outcome.usage,
                    self.spending.models.usd(route, outcome.usage),
                    self.clock.monotonic() - began,
                )
        key = place.thread, place.seq, run
        with anyio.CancelScope(shield=True):
            await self.rows.keep(comparison.id, key, answer)
        return answer, ""


def _newest(turns: dict[TurnId, RecordedTurn], count: int) -> dict[TurnId, RecordedTurn]:
    """Return the newest `count` turns, oldest first. 0 returns all."""
    return dict(sorted(turns.items(), key=lambda turn: turn[1].began_at)[-count:])


def total(parts: Iterable[float | None]) -> float | None:
    """Return the sum, or None if any amount is unknown."""
    known = list(parts)
    return None if None in known else sum(part for part in known if part is not None)
