"""The owner's private words reach nobody else. An untrusted person's words reach the owner only as untrusted text."""

import json
import tempfile
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.noninterference import (
    ACTS,
    HOLDS,
    SAYINGS,
    STRANGER,
    TALKS_MAX,
    UNUSED,
    WORDS,
    Act,
    Talk,
    Who,
    holds,
    is_private,
)
from tests.scenarios.scene import playing
from tests.scenarios.stands import Stand

from shoal.kernel.messages import ToolMessage, Usage
from shoal.kernel.untrusted import is_untrusted_block
from shoal.permissions.access import AccessRules
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply, Seen
from shoal.testing.scenario import scenario
from shoal.threads.commands import CommandRouter
from shoal.tools.registry import Registry

PARTS = 2
"""The parts run in parallel."""
EXAMPLES = 4 * settings().max_examples
"""Total number of random conversations. `--hypothesis-profile many` and the `people` target of `make fuzz` play
more."""
HELD_EXAMPLES = 32
"""Conversations in which an owner's turn may be running while an untrusted person looks."""

SPOKEN = Act("owner alone", "{w}")

private = [act for act in ACTS if is_private(act)]
told = st.sampled_from(WORDS) | st.sampled_from(SAYINGS) | st.text(max_size=20)
done = st.tuples(st.sampled_from(private), st.lists(st.sampled_from(ACTS), min_size=1, max_size=4))
acts = done.map(lambda done: [done[0], *done[1]])
talk = st.builds(Talk, acts, st.tuples(told, told))
held_talk = st.builds(Talk, acts.map(lambda acts: [SPOKEN, *acts]), st.tuples(st.just(HOLDS), told))


def plays(talks: st.SearchStrategy[Talk], examples: int) -> None:
    """Play at least this many talks. One app plays TALKS_MAX of them, because opening an app is slow."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

    @settings(max_examples=-(-examples // TALKS_MAX), deadline=None, suppress_health_check=checks)
    @given(st.lists(talks, min_size=TALKS_MAX, max_size=TALKS_MAX))
    def play(talks: list[Talk]) -> None:
        with tempfile.TemporaryDirectory(prefix="people-") as folder:
            holds(Path(folder) / "play", talks)

    play()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_private_words_change_nothing_for_an_untrusted_person(part: int) -> None:
    plays(talk, EXAMPLES // PARTS)


@pytest.mark.slow
def test_a_running_private_turn_changes_nothing_for_an_untrusted_person() -> None:
    plays(held_talk, HELD_EXAMPLES)


def test_a_private_reminders_memory_is_private_in_an_empty_conversation(tmp_path: Path) -> None:
    remembers = (("remember", {"text": "tea is good", "scope": "global"}),)
    acts = [Act("owner alone", "{w} do it", remembers), Act(None, seconds=120), Act("owner in the group", "hello")]
    holds(tmp_path / "play", [Talk(acts, ("tide", "/remind in 1 minute tide"))])


@pytest.mark.slow
def test_no_private_action_changes_anything_for_an_untrusted_person(tmp_path: Path) -> None:
    others = [act for act in ACTS if not is_private(act)]
    holds(tmp_path / "play", [Talk([*private, *others], ("tide", "reef, which is longer"))])


async def test_the_test_people_use_every_tool_and_command(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel()) as world:
        tools, commands = set(world.app[Registry].names()) - UNUSED.keys(), world.app[CommandRouter].table
    spoken = {act.who: set[str]() for act in ACTS if act.who is not None}
    for act in ACTS:
        if act.who is not None:
            command = commands.parse(act.text)
            spoken[act.who] |= {name for name, _ in act.calls} | ({f"/{command.name}"} if command else set())
    wanted = tools | {f"/{spec.name}" for spec in commands}
    people = set(get_args(Who)) - {"a webhook"}
    assert {who: wanted - found for who, found in spoken.items() if who in people} == {who: set() for who in people}


def test_the_taint_of_a_private_line_does_not_mark_other_peoples_prompts(tmp_path: Path) -> None:
    acts = [
        Act("stranger in the group", STRANGER, (("remember", {"text": "tea", "scope": "platform"}),)),
        Act("owner alone", "{w}", (("remember", {"text": "{w}", "scope": "platform"}),)),
        Act("stranger alone", STRANGER),
    ]
    holds(tmp_path / "play", [Talk(acts, ("tea", "reef"))])


SECRET, STRANGE = "the-treasure", "avast-ye"
KEEPS = (
    ("write", {"path": "map.txt", "content": SECRET}),
    ("remember", {"text": SECRET, "scope": "global"}),
    ("note_today", {"text": SECRET}),
    ("process_start", {"command": "sleep 300", "name": SECRET}),
)
LOOKS = (
    ("read", {"path": "map.txt"}),
    ("list", {}),
    ("process_list", {}),
    ("search_history", {"query": SECRET}),
    ("search_history", {"query": STRANGE}),
)


def _model() -> FakeModel:
    def script(seen: Seen) -> Reply | str:
        wanted = KEEPS if "keep" in seen.user_text else LOOKS if "look" in seen.user_text else ()
        if wanted and seen.rounds == 0:
            return Reply(calls=tuple(Call(name, json.dumps(arguments)) for name, arguments in wanted))
        return f"I have done it: {'kept' if wanted is KEEPS else 'looked'}"

    return FakeModel(script=script)


PLATFORMS = ["fake", "telegram", "discord", "slack", "matrix", "teams", "google_chat"]


@pytest.mark.parametrize("stand", PLATFORMS, indirect=True)
async def test_an_untrusted_person_on_any_platform_finds_no_data_of_the_owner(tmp_path: Path, stand: Stand) -> None:
    model = _model()
    async with playing(stand, tmp_path, model, strangers=True) as scene:
        stranger = scene.person(stand.stranger, stand.strange)
        await scene.ada.says(f"keep {SECRET}")
        await scene.ada.sees("kept")
        await stranger.says(f"look for {STRANGE}")
        await stranger.sees("looked")
        channel = stand.thread(stand.strange).rpartition(":")[0]
        theirs = [request for request in model.requests if request.cache_key.startswith(f"{channel}:")]
        texts = [text for one in theirs for text in (one.system, *(message.text for message in one.messages))]
        found = [text for text in texts if SECRET in text]
        assert len(theirs) == 2
        assert ["Nothing found for" in text for text in found] == [True], "the stranger's own question comes back"
        told = [await stranger.asks(command) for command in ("/tasks", "/thread list", "/status", "/remind list")]
        assert not [text for text in told if SECRET in text or "process" in text]
        await scene.ada.says("look")
        await scene.ada.sees("looked")
    (results,) = [[one.text for one in model.requests[-1].messages if isinstance(one, ToolMessage)][-len(LOOKS) :]]
    assert [SECRET in result for result in results] == [True, False, True, True, False]
    assert STRANGE in results[-1]
    assert is_untrusted_block(results[-1])


ACCESS = AccessRules(("ada",), ("*",))


def _telling() -> FakeModel:
    def script(seen: Seen) -> Reply | str:
        if "remember" in seen.user_text and seen.rounds == 0:
            return Reply(calls=(Call("remember", json.dumps({"text": SECRET, "scope": "global"})),))
        return "done"

    return FakeModel(script=script)


async def test_a_reminder_sees_the_same_as_its_conversation(tmp_path: Path) -> None:
    clock, model = ManualClock(), _telling()
    async with scenario(tmp_path, model, clock=clock, access=ACCESS) as world:
        alone = world.person("ada", "1", "dm-ada", direct=True)
        group = world.person("ada", "1", "square")
        for person, words in ((alone, "remember it"), (group, "hello"), (alone, "/context clear")):
            await (person.asks(words) if words.startswith("/") else person.says(words))
            await world.is_quiet()
        for person in (alone, group):
            await person.asks("/remind in 1 minute look")
        await clock.advance(61)
        await world.is_quiet()
        told = {one.cache_key: SECRET in one.system for one in model.requests}
        assert told == {alone.thread: True, group.thread: False}
        last = [one for one in model.requests if one.cache_key == alone.thread][-1]
        assert "look" in last.messages[-1].text


async def test_automatic_messages_do_not_reach_untrusted_people(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=lambda _: "hi"), access=ACCESS) as world:
        settings = world.app[Store].settings
        alone = world.person("ada", "1", "dm-ada", direct=True)
        for person in (alone, world.person("eve", "1", "dm-eve", direct=True), world.person("ada", "1", "square")):
            await person.says("hello")
            await world.is_quiet()
        assert await settings.get("last_channel", "main") == alone.thread


async def test_a_limit_reached_by_others_blocks_no_one(tmp_path: Path) -> None:
    starts = Reply(calls=tuple(Call("process_start", '{"command": "sleep 300"}') for _ in range(9)))
    model = FakeModel(script=lambda seen: "done" if seen.rounds else starts)
    async with scenario(tmp_path, model) as world:
        for channel in ("dm-ada", "square"):
            await world.person("ada", "1", channel, direct=True).says("go")
            await world.is_quiet()
            results = [one.text for one in model.requests[-1].messages if isinstance(one, ToolMessage)]
            assert ["which is the limit" in text for text in results] == [*[False] * 8, True]


async def test_private_usage_does_not_affect_other_peoples_requests(tmp_path: Path) -> None:
    """Shoal fits a request to the window by the usage of earlier turns. Other people's requests must ignore the
    private turns.
    """
    told: list[list[bool]] = []
    for number, tokens in enumerate((500, 40_000)):
        model = FakeModel(
            script=lambda seen, tokens=tokens: Reply("hi", usage=Usage(tokens * ("{w}" in seen.user_text), 0))
        )
        settings = {
            "context": {"reserve_tokens": 1000, "keep_recent_tokens": 1000},
            "model": {"context_tokens_max": 30_000},
        }
        async with scenario(tmp_path / str(number), model, access=ACCESS, settings=settings) as world:
            alone, eve = world.person("ada", "1", "dm-ada", direct=True), world.person("eve", "1", "square")
            for person, words in (
                (eve, "tide " * 6000),
                (eve, "reef " * 6000),
                (alone, "{w} " * 1000),
                (eve, "and now"),
            ):
                await person.says(words)
                await world.is_quiet()
            theirs = [one for one in model.requests if one.cache_key.startswith("fake:square")]
            told.append([len(message.text) > 20_000 for one in theirs for message in one.messages])
    assert told[0] == told[1]
    assert told[0][-5:].count(True) == 2, "all of it fits"


async def test_a_shared_limit_is_hidden_from_untrusted_people(tmp_path: Path) -> None:
    model = FakeModel(script=lambda _: Reply("hi", usage=Usage(9_000, 0)))
    settings = {
        "budget": {"tokens_per_day": 200_000, "tokens_per_thread_day": 90_000},
        "model": {"max_output_tokens": 10},
    }
    async with scenario(tmp_path, model, access=ACCESS, settings=settings) as world:
        alone, eve = world.person("ada", "1", "dm-ada", direct=True), world.person("eve", "1", "square")
        for _ in range(9):
            await alone.says("hello")
            await world.is_quiet()
        await eve.says("hello")
        await world.is_quiet()
        assert "Remaining budget" in str(model.requests[-2])
        assert "Remaining budget" not in str(model.requests[-1])
        assert "90,000" in await eve.asks("/status")
        assert "200,000" not in await eve.asks("/status")
        assert "200,000" in await alone.asks("/status")
        strangers = [world.person("eve", str(number), "square") for number in range(2, 18)]
        for stranger in strangers:
            await stranger.says("hello")
            await world.is_quiet()
        told = [text for one in (eve, *strangers) for text in world.chat.texts(one.thread)]
        assert [text for text in told if text.startswith("I stopped: the budget")]
        assert not [text for text in told if "200,000" in text]
