"""Clock changes and suspended machines during every kind of wait: no work is lost, repeated or blocked."""

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from tests.postgres import empty
from tests.scenarios.kit import in_time

from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.service import POLL_SECONDS, TriggerService
from shoal.kernel.errors import PlatformError
from shoal.kernel.events import TurnFinished, UserSaid
from shoal.kernel.messages import Author, Usage
from shoal.kernel.permissions import Asker
from shoal.kernel.posts import OutboundPost
from shoal.kernel.records import Ceiling, Reservation
from shoal.store.store import Store
from shoal.testing.chat import FakeChat
from shoal.testing.clock import START, ManualClock
from shoal.testing.model import Call, FakeModel, Refusal, Reply, Seen
from shoal.testing.scenario import scenario
from shoal.threads.orchestrator import Orchestrator
from shoal.turn.spending import STANDS_SECONDS

HOUR, DAY = 3600.0, 86_400.0
JUMPS = (-40 * DAY, -DAY, -HOUR, HOUR, DAY, 40 * DAY)
ADA = Author("ada", trusted=True)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))])
def settings(request: pytest.FixtureRequest) -> dict[str, object]:
    if request.param == "sqlite":
        return {}
    url: str = request.getfixturevalue("postgres_database")
    empty(url)
    return {"database": {"url": f"postgresql:///?{'&'.join(url.split())}"}}


class AwayChat(FakeChat):
    away = False

    async def post(self, post: OutboundPost) -> str:
        if self.away:
            raise PlatformError("It is away.")
        return await super().post(post)


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_waiting_post_is_sent_after_a_clock_change(
    tmp_path: Path, settings: dict[str, object], jump: float
) -> None:
    clock = ManualClock()
    chat = AwayChat(clock=clock)
    model = FakeModel("one", "two")
    async with scenario(tmp_path, model, clock=clock, settings=settings, chat=chat) as world:
        chat.away = True
        await world.ada.says("hello")
        await world.happens(world.ada.thread, "turn_finished")
        await clock.advance(30)
        clock.jump(jump)
        chat.away = False
        await in_time(clock, world.ada.sees("one"), 5)
        await world.ada.says("again")
        await in_time(clock, world.ada.sees("two"), 5)
        assert world.chat.texts(world.ada.thread) == ["one", "two"]


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_turn_waiting_for_its_model_continues_after_a_clock_change(
    tmp_path: Path, settings: dict[str, object], jump: float
) -> None:
    clock, down = ManualClock(), True
    model = FakeModel(script=lambda seen: Refusal(529) if down else "back")
    settings = {**settings, "model": {"outage_seconds": 172_800}}
    async with scenario(tmp_path, model, clock=clock, settings=settings) as world:
        await world.ada.says("hello")
        await in_time(clock, world.happens(world.ada.thread, "retry_scheduled"), 1)
        clock.jump(jump)
        down = False
        began = clock.monotonic()
        await in_time(clock, world.ada.sees("back"))
        assert clock.monotonic() - began < HOUR


@pytest.mark.parametrize("jump", JUMPS)
async def test_an_approval_is_answered_or_expires_after_a_clock_change(
    tmp_path: Path, settings: dict[str, object], jump: float
) -> None:
    clock = ManualClock()

    def script(seen: Seen) -> Reply | str:
        return "done" if seen.rounds else Reply(calls=(Call("bash", json.dumps({"command": "curl example.org"})),))

    settings = {**settings, "permissions": {"default_profile": "standard"}}
    async with scenario(tmp_path, FakeModel(script=script), clock=clock, settings=settings) as world:
        await world.ada.says("hello")
        question = await world.ada.is_asked()
        clock.jump(jump)
        await clock.advance(60)
        if jump > 0:
            assert (await world.happens(world.ada.thread, "approval_decided")).data.decision == "expired"  # pyrefly: ignore[missing-attribute]
        else:
            asker = Asker(trust="trusted", user="ada", platform="fake")
            assert await world.app[Orchestrator].decide(question.id, False, asker) == "deny"
        await in_time(clock, world.ada.sees("done"), 5)


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_trigger_runs_once_by_the_current_clock(
    tmp_path: Path, settings: dict[str, object], jump: float
) -> None:
    clock, model = ManualClock(), FakeModel(script=lambda seen: "heard")
    settings = {**settings, "triggers": {"catch_up_seconds": int(41 * DAY)}}
    async with scenario(tmp_path, model, clock=clock, settings=settings) as world:
        for kind, schedule in (("one-shot", "2026-01-05T09:10:00+00:00"), ("periodic", "10 9 * * *")):
            await world.app[TriggerService].add(NewTrigger(kind, schedule, kind, ADA, "", thread=world.ada.thread))
        await clock.advance(60)
        clock.jump(jump)
        await clock.advance(POLL_SECONDS + 1)
        until = START + timedelta(minutes=15) + timedelta(seconds=max(jump, 0.0))
        while clock.now() < until:
            await world.is_quiet()
            await clock.jump_to(min(until, clock.now() + timedelta(hours=6)))
        await world.is_quiet()
        said = [event.data.text for event in await world.journal() if isinstance(event.data, UserSaid)]
        came = Counter(text.split()[0] for text in said)
        assert came == {"one-shot": 1, "periodic": 2 if jump >= DAY else 1}, said


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_trigger_with_a_failed_turn_is_retried_after_its_pause(
    tmp_path: Path, settings: dict[str, object], jump: float
) -> None:
    clock, model = ManualClock(), FakeModel(Refusal(400), "heard")
    settings = {**settings, "triggers": {"catch_up_seconds": int(41 * DAY)}}
    async with scenario(tmp_path, model, clock=clock, settings=settings) as world:
        spec = NewTrigger("one-shot", "2026-01-05T09:10:00+00:00", "go", ADA, "", thread=world.ada.thread)
        await world.app[TriggerService].add(spec)
        await clock.advance(600)
        await world.happens(world.ada.thread, "turn_finished")
        clock.jump(jump)
        began = clock.monotonic()
        await in_time(clock, world.ada.sees("heard"))
        assert clock.monotonic() - began < HOUR


async def test_a_killed_processs_reservation_expires_despite_clock_changes(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    clock, model = ManualClock(), FakeModel("hi")
    settings = {**settings, "budget": {"tokens_total": 30_000}, "model": {"max_output_tokens": 10}}
    async with scenario(tmp_path, model, clock=clock, settings=settings) as world:
        ceilings = (Ceiling("total", "", 0.0, 30_000),)
        clock.jump(40 * DAY)
        left = Reservation("left", ceilings, 0.0, 29_000, clock.now() + timedelta(seconds=STANDS_SECONDS))
        assert (await world.app[Store].budget.reserve(left)).blocked is None
        clock.jump(-40 * DAY)
        await world.ada.says("hello")
        await in_time(clock, world.ada.sees("hi"), 5)


@pytest.mark.parametrize(("jump", "outcome"), [(-DAY, "done"), (-HOUR, "limit"), (HOUR, "limit"), (DAY, "done")])
async def test_a_daily_budget_applies_to_the_current_day(
    tmp_path: Path, settings: dict[str, object], jump: float, outcome: str
) -> None:
    clock, model = ManualClock(), FakeModel(script=lambda seen: Reply("hi", usage=Usage(15_000, 1)))
    settings = {**settings, "budget": {"tokens_per_day": 20_000}, "model": {"max_output_tokens": 10}}
    async with scenario(tmp_path, model, clock=clock, settings=settings) as world:
        for number in (1, 2):
            await world.ada.says("hello")
            last = await in_time(clock, world.happens(world.ada.thread, "turn_finished", number), 1)
            clock.jump(jump)
        assert isinstance(last.data, TurnFinished)
        assert last.data.outcome == outcome
