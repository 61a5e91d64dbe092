"""Budgets: a notice before a limit, a reply that explains the stop, and an owner who can suspend the limit."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scenarios.kit import calls, echo

from shoal.features.snapshots.service import ConversationSnapshots
from shoal.kernel.clock import Clock
from shoal.kernel.commands import CommandRequest
from shoal.kernel.events import LimitReached, TurnFinished, TurnStarted
from shoal.kernel.messages import Author, Usage
from shoal.permissions.access import AccessRules
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel, Gate, Refusal, Reply, Seen
from shoal.testing.scenario import World, scenario
from shoal.threads.commands import CommandRouter
from shoal.turn.spending import LOW_SHARE
from shoal.turn.tokens import Gauge

ECHOED = '{"text": "x"}'
PARAGRAPH = "The quick brown fox jumps over the lazy dog near the river bank. " * 60


def budget(**ceilings: float | str) -> dict[str, object]:
    return {"budget": ceilings, "model": {"max_output_tokens": 100}}


def used(text: str, tokens: int) -> Reply:
    return Reply(text, usage=Usage(tokens, 0))


async def limits(world: World) -> list[LimitReached]:
    return [event.data for event in await world.journal() if isinstance(event.data, LimitReached)]


@pytest.mark.parametrize(
    "ceiling", ["tokens_per_turn", "tokens_per_thread_day", "tokens_per_user_day", "tokens_per_agent_day",
                "tokens_per_day", "tokens_total"]
)  # fmt: skip
async def test_a_call_that_could_exceed_a_limit_is_not_made(tmp_path: Path, ceiling: str) -> None:
    async with scenario(tmp_path, FakeModel("never said"), settings=budget(**{ceiling: 50})) as world:
        await world.ada.says("hi")
        stop = await world.ada.sees("I stopped: the budget")
        assert "shoal usage lift" in stop.markdown
        assert not world.model.requests
        assert [limit.limit for limit in await limits(world)] == ["budget"]
        (finished,) = [event.data for event in await world.journal() if isinstance(event.data, TurnFinished)]
        assert finished.outcome == "limit"


@pytest.mark.parametrize("counted", [-5_000_000, 0, 7, 10**12, 10**20])
async def test_an_implausible_usage_report_is_replaced_by_an_estimate(tmp_path: Path, counted: int) -> None:
    model = FakeModel(Reply(PARAGRAPH, usage=Usage(counted, counted)), Reply("again", usage=Usage(50_000, 10)))
    async with scenario(tmp_path, model) as world:
        await world.ada.says("hi")
        await world.ada.sees("The quick brown fox")
        (row,) = await world.app[Store].ledger.usage()
        request = model.requests[0]
        assert row.usage.input_tokens == pytest.approx(Gauge().request(request), rel=0.1)
        assert len(PARAGRAPH) // 5 < row.usage.output_tokens < len(PARAGRAPH)
        assert row.usage.estimated == 1
        await world.ada.says("hi")
        await world.ada.sees("again")
        (after,) = await world.app[Store].ledger.usage()
        assert after.usage.input_tokens - row.usage.input_tokens == 50_000
        assert (after.calls, after.usage.estimated) == (2, 1)


@settings(max_examples=6, deadline=None)
@given(
    st.lists(st.sampled_from([-1, 0, 1, 5, 900, 10**7 + 1, 10**12, 10**18]), min_size=5, max_size=5),
    st.sampled_from(["tokens_per_turn", "tokens_per_day"]),
)
async def test_no_usage_report_lets_a_turn_exceed_its_limit(counts: list[int], ceiling: str) -> None:
    model = FakeModel(script=lambda seen: Reply(calls=calls("echo", arguments=ECHOED).calls, usage=Usage(*counts)))
    with TemporaryDirectory() as folder:
        async with scenario(Path(folder), model, tools=(echo,), settings=budget(**{ceiling: 15_000})) as world:
            await world.ada.says("hi")
            await world.ada.sees("I stopped: the budget")
            # Shoal replaces reports below LOW_SHARE of its estimate. Gauge may exceed that estimate by half.
            assert sum(map(Gauge().request, model.requests)) * LOW_SHARE < 15_000 * 1.5


async def test_an_answers_usage_is_recorded_once(tmp_path: Path) -> None:
    answers = [
        Reply(calls=calls(*["echo"] * count, arguments='{"text": "x"}').calls, usage=Usage(10**count * 9_000, 100))
        for count in (1, 2, 3)
    ]
    model = FakeModel(*answers, Reply("done", usage=Usage(9_000, 100)))
    async with scenario(tmp_path, model, tools=[echo]) as world:
        await world.ada.says("hi")
        await world.ada.sees("done")
        (row,) = await world.app[Store].ledger.usage()
        assert (row.calls, row.usage.input_tokens, row.usage.output_tokens) == (4, 1111 * 9_000, 400)


async def test_a_turn_stops_between_its_steps(tmp_path: Path) -> None:
    first = Reply(calls=calls("echo", arguments='{"text": "x"}').calls, usage=Usage(1_000_000, 0))
    model = FakeModel(first, "never said")
    async with scenario(tmp_path, model, tools=(echo,), settings=budget(tokens_per_turn=500_000)) as world:
        await world.ada.says("hi")
        await world.ada.sees("I stopped: the budget")
        assert len(model.requests) == 1


async def test_only_actual_usage_is_charged(tmp_path: Path) -> None:
    model = FakeModel(used("one", 70_000), used("two", 80_000))
    async with scenario(tmp_path, model, settings=budget(tokens_per_day=1_000_000)) as world:
        for text in ("one", "two"):
            await world.ada.says("hi")
            await world.ada.sees(text)
        (day,) = await world.app[Store].budget.standings()
        assert day.scope == "day"
        assert 150_002 <= day.tokens < 150_010, "the two answers are estimated"


async def test_at_four_fifths_of_the_budget_the_person_is_notified_once(tmp_path: Path) -> None:
    model = FakeModel(used("one", 850_000), used("two", 1), used("three", 1))
    async with scenario(tmp_path, model, settings=budget(tokens_per_day=1_000_000)) as world:
        for text in ("one", "two", "three"):
            await world.ada.says("hi")
            await world.ada.sees(text)
        notes = [text for text in world.chat.texts(world.ada.thread) if "The budget is running low" in text]
        assert len(notes) == 1
        told = [event.data.context for event in await world.journal() if isinstance(event.data, TurnStarted)]
        assert ["Remaining budget:" in text for text in told] == [False, True, True]


async def test_the_owner_suspends_the_budget_for_the_day(tmp_path: Path) -> None:
    clock = ManualClock()
    model = FakeModel("welcome back")
    async with scenario(tmp_path, model, clock=clock, settings=budget(tokens_per_day=50)) as world:
        await world.ada.says("hi")
        await world.ada.sees("I stopped: the budget")
        await world.app[Store].budget.lift()
        await world.ada.says("again")
        await world.ada.sees("welcome back")


async def test_a_model_without_a_price_is_refused_or_allowed_by_setting(tmp_path: Path) -> None:
    async with scenario(tmp_path / "a", FakeModel("never said"), settings=budget(usd_per_day=5.0)) as world:
        await world.ada.says("hi")
        await world.ada.sees("price of")
        assert not world.model.requests
    settings = budget(usd_per_day=5.0, unpriced="allow")
    async with scenario(tmp_path / "b", FakeModel("hello"), settings=settings) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")


async def test_without_a_limit_no_budget_rows_are_stored(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("hello")) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")
        assert await world.app[Store].budget.standings() == []


async def test_a_raised_limit_takes_effect_at_the_next_start(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("never said"), settings=budget(tokens_per_day=50)) as world:
        await world.ada.says("hi")
        await world.ada.sees("I stopped: the budget")
    async with scenario(tmp_path, FakeModel("welcome back"), settings=budget(tokens_per_day=1_000_000)) as world:
        await world.ada.says("again")
        await world.ada.sees("welcome back")
        (day,) = await world.app[Store].budget.standings()
        assert day.tokens_max == 1_000_000


async def test_a_stopped_answer_is_charged(tmp_path: Path) -> None:
    gate = Gate()
    model = FakeModel(Reply("one two three four five six", gate=gate, gate_at=4))
    async with scenario(tmp_path, model, settings=budget(tokens_per_day=1_000_000)) as world:
        await world.ada.says("hi")
        await gate.reached.wait()
        (before,) = await world.app[Store].budget.standings()
        await world.ada.stops()
        await world.happens(world.ada.thread, "turn_finished")
        (day,) = await world.app[Store].budget.standings()
        (row,) = await world.app[Store].ledger.usage()
        assert row.calls == 1
        assert row.usage.input_tokens > 100
        assert 0 < row.usage.output_tokens < 20
        assert day.tokens == row.usage.input_tokens + row.usage.output_tokens < before.tokens


@pytest.mark.parametrize(("text", "pieces"), [("one two three four", 3), ("I", 1)])
async def test_an_interrupted_answer_is_charged_in_addition_to_its_retry(
    tmp_path: Path, text: str, pieces: int
) -> None:
    model = FakeModel(Reply(text, drop_after=pieces), used("at last", 1000))
    settings = {**budget(tokens_per_day=1_000_000), "turns": {"retry_base_seconds": 0.001}}
    async with scenario(tmp_path, model, settings=settings) as world:
        await world.ada.says("hi")
        await world.ada.sees("at last")
        (row,) = await world.app[Store].ledger.usage()
        (day,) = await world.app[Store].budget.standings()
        assert row.calls == 2
        assert day.tokens == row.usage.input_tokens + row.usage.output_tokens > 1100


async def test_an_unstarted_call_costs_nothing(tmp_path: Path) -> None:
    model = FakeModel(Refusal(401), used("fine", 1000))
    async with scenario(tmp_path, model, settings=budget(tokens_per_day=1_000_000)) as world:
        await world.ada.says("hi")
        await world.happens(world.ada.thread, "turn_finished")
        assert [one.tokens for one in await world.app[Store].budget.standings()] == [0]
        assert await world.app[Store].ledger.usage() == []


async def test_describing_a_saved_conversation_is_charged(tmp_path: Path) -> None:
    model = FakeModel(used("hello", 10_000), used("They greeted.", 70_000))
    async with scenario(tmp_path, model, settings=budget(tokens_per_day=1_000_000)) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")
        saved = await world.app[ConversationSnapshots].save(world.ada.thread)
        assert saved.description == "They greeted."
        assert [one.tokens for one in await world.app[Store].budget.standings()] == [80_006]
        assert [row.calls for row in await world.app[Store].ledger.usage()] == [2]


async def test_an_exhausted_budget_leaves_a_plain_description(tmp_path: Path) -> None:
    model = FakeModel(used("hello", 999_990))
    async with scenario(tmp_path, model, settings=budget(tokens_per_day=1_000_000)) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")
        saved = await world.app[ConversationSnapshots].save(world.ada.thread)
        assert "2 messages" in saved.description
        assert len(model.requests) == 1


async def test_a_summary_is_charged(tmp_path: Path) -> None:
    summaries: list[Seen] = []

    def answer(seen: Seen) -> Reply:
        if "Write the summary now." not in seen.user_text:
            return Reply(f"noted: {PARAGRAPH}")
        summaries.append(seen)
        return Reply("goal: talk\nprogress: much was said")

    settings = {**budget(tokens_per_day=10_000_000), "model": {"context_tokens_max": 24_000, "max_output_tokens": 100}}
    async with scenario(tmp_path, FakeModel(script=answer), settings=settings) as world:
        for number in range(14):
            await world.ada.says(f"part {number}: {PARAGRAPH}")
            await world.happens(world.ada.thread, "turn_finished", number + 1)
        await world.happens(world.ada.thread, "compacted")
    async with scenario(tmp_path, FakeModel(), settings=settings) as world:
        (day,) = await world.app[Store].budget.standings()
        (row,) = await world.app[Store].ledger.usage()
        assert summaries
        assert row.calls >= 14 + len(summaries)
        assert day.tokens == row.usage.input_tokens + row.usage.output_tokens


async def test_fifty_concurrent_threads_never_exceed_a_limit(tmp_path: Path) -> None:
    model = FakeModel(script=lambda seen: used("fine", 3000))
    async with scenario(tmp_path, model, settings=budget(tokens_per_day=20_000)) as world:
        people = [world.person(f"user{number}", str(number)) for number in range(50)]
        for person in people:
            await person.says("hi")
        for person in people:
            await world.happens(person.thread, "turn_finished")
        (day,) = await world.app[Store].budget.standings()
        outcomes = [
            event.data.outcome
            for person in people
            for event in await world.journal(person.thread)
            if isinstance(event.data, TurnFinished)
        ]
        assert outcomes.count("done") == len(model.requests) < 50
        assert outcomes.count("limit") == 50 - len(model.requests)
        assert day.tokens == 3001 * len(model.requests) <= 20_000 + 3001


async def test_status_shows_only_limits_that_apply_here(tmp_path: Path) -> None:
    settings = budget(tokens_per_thread_day=1_000_000, tokens_per_user_day=1_000_000)
    async with scenario(tmp_path, FakeModel(used("hello", 70_000), used("hi", 70_000)), settings=settings) as world:
        for person in (world.ada, world.person("bob", "2")):
            await person.says("hi")
            await world.happens(person.thread, "turn_finished")
        assert (await world.ada.asks("/status")).count("929,998 of 1,000,000") == 1


async def test_status_shows_spent_and_remaining_budget(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(used("hello", 70_000)), settings=budget(tokens_per_day=1_000_000)) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")
        author, now = Author("ada", trusted=True), world.app[Clock].now()
        status = await world.app[CommandRouter].command(
            CommandRequest(world.ada.thread, author, "status", "", "k", now)
        )
        assert "Today, in all conversations: 1 model call, 70,002 tokens." in status
        assert "Left: 929,998 of 1,000,000 tokens (in total today)." in status


# ---- people allowed only by `*` ----

OPEN_TO_ALL = AccessRules(owners=("ada",), allow=("*", "ben"))


async def test_an_untrusted_person_has_a_default_limit(tmp_path: Path) -> None:
    model = FakeModel(script=lambda _: used("done", 150_000))
    async with scenario(tmp_path, model, access=OPEN_TO_ALL) as world:
        eve, ben = world.person("eve", "1", "dm-eve", direct=True), world.person("ben", "1", "dm-ben", direct=True)
        await eve.says("hi")
        await eve.sees("done")
        await eve.says("more")
        await eve.sees("done")
        await eve.says("even more")
        stop = await eve.sees("I stopped: the budget")
        assert "strangers" not in stop.markdown
        for _ in range(4):
            await ben.says("hi")
            await world.is_quiet()
        assert not [text for text in world.chat.texts(ben.thread) if "I stopped" in text]


async def test_untrusted_accounts_share_a_limit(tmp_path: Path) -> None:
    model = FakeModel(script=lambda _: used("done", 150_000))
    async with scenario(tmp_path, model, access=OPEN_TO_ALL) as world:
        accounts = [world.person(f"eve{number}", "1", f"dm-{number}", direct=True) for number in range(9)]
        for account in accounts:
            await account.says("hi")
            await world.is_quiet()
        stopped = [one for one in accounts if any("I stopped" in text for text in world.chat.texts(one.thread))]
        assert stopped == accounts[7:]
        assert len(model.requests) == 7


async def test_a_plausible_input_count_calibrates_even_with_a_guessed_output(tmp_path: Path) -> None:
    model = FakeModel(Reply(PARAGRAPH, usage=Usage(20_000, 0)), Reply("again", usage=Usage(0, 0)))
    async with scenario(tmp_path, model) as world:
        await world.ada.says("hi")
        await world.ada.sees("The quick brown fox")
        await world.ada.says("hi")
        await world.ada.sees("again")
        (both,) = await world.app[Store].ledger.usage()
        assert both.usage.estimated == 2
        guessed = both.usage.input_tokens - 20_000
        assert guessed > 1.5 * Gauge().request(model.requests[1]), "the model's tokens are short"
