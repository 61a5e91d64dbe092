"""The asker and the taint follow every route by which one turn starts another (tests/GUARANTEES.md)."""

from pathlib import Path

import httpx2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.postgres import database
from tests.scenarios.delegation import results
from tests.scenarios.kit import Door
from tests.scenarios.routes import ACCESS, BY_ITSELF, PEOPLE_GO_ON, SETTINGS, Chain, call
from tests.scenarios.test_taint import time_page

from shoal.agents.folder import make_folder
from shoal.agents.lifecycle import AgentLifecycle
from shoal.features.snapshots.service import ConversationSnapshots
from shoal.features.triggers.settings import HookSettings
from shoal.features.triggers.webhooks import Webhooks
from shoal.kernel.events import UserSaid
from shoal.kernel.home import Home
from shoal.kernel.ids import HEARTBEAT_THREAD, ThreadId
from shoal.kernel.messages import ToolMessage
from shoal.kernel.secret import Secret
from shoal.kernel.untrusted import is_untrusted_block
from shoal.store.moving import migrate_sqlite_to_postgres
from shoal.store.store import Store
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.model.script import Seen
from shoal.testing.scenario import scenario
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.prompt_files import PromptFiles

SECRET = "sixteen-letters-at-least"
FREE = {
    "agents": {"managers": ["fake:ada"]},
    "permissions": {
        "default_profile": "free",
        "approvers": ["fake:ada"],
        "profiles": {
            "free": {"extends": "open", "trusted_allow": ["tool:(wait|remember|write_doc|delete_doc):(?s:.*)"]}
        },
    },
}


@pytest.mark.parametrize("route", ["command", *BY_ITSELF, *PEOPLE_GO_ON])
async def test_consequences_of_untrusted_words_stay_attributed_to_their_author(tmp_path: Path, route: str) -> None:
    chain = Chain(tmp_path, (route,))
    async with scenario(
        tmp_path, chain.model, access=ACCESS, clock=chain.clock, settings=SETTINGS, changes=("instructions",)
    ) as world:
        approval, said = await chain.ends(world)
        assert "mallory" in approval.reason
        if route in PEOPLE_GO_ON:
            assert said.author.id == "ada"
            told = [event.data for event in await world.journal(ThreadId("fake:harbour:told"))]
            assert not any(one.author.trusted for one in told if isinstance(one, UserSaid) and one.origin == "system")
        elif route != "event file":  # a file records the source of its taint, not the person who asked for it
            assert (said.author.id, said.author.trusted) == ("mallory", False)
            assert approval.asked_by == "fake:mallory"
            assert "mallory" in said.author.name or route in ("subagent", "spawn", "ask_agent")


@pytest.mark.parametrize("route", [*BY_ITSELF, *PEOPLE_GO_ON])
async def test_consequences_of_a_read_page_stay_tainted_by_it(tmp_path: Path, route: str) -> None:
    chain = Chain(tmp_path, (route,), by_page=True)
    async with scenario(
        tmp_path,
        chain.model,
        access=ACCESS,
        clock=chain.clock,
        settings=SETTINGS,
        tools=[time_page],
        changes=("instructions",),
    ) as world:
        approval, said = await chain.ends(world)
        assert "the page of a stranger" in approval.reason
        assert said.author.id == ("shoal" if route == "event file" else "ada")
        assert said.author.trusted


@st.composite
def chains(draw: st.DrawFn) -> tuple[str, ...]:
    """Draw a chain of routes. Some combinations are excluded:

    - Nobody saves or continues the conversation of a subagent.
    - ada does not read the instructions and snapshots of another agent.
    - Command output arrives in real time, so only the first route may use it.
    """
    found = [draw(st.sampled_from(["command", *BY_ITSELF, *PEOPLE_GO_ON]))]
    for _ in range(draw(st.integers(1, 3))):
        left = {*BY_ITSELF, *PEOPLE_GO_ON} - {"output"}
        if found[-1] in ("subagent", "spawn", "ask_agent"):
            left -= {"snapshot", "conversation"}
        if "ask_agent" in found:
            left -= {"document", "skill", "persona", "snapshot"}
        found.append(draw(st.sampled_from(sorted(left))))
    return tuple(found)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(routes=chains(), by_page=st.booleans())
@example(routes=("command", "event file", "memory", "document"), by_page=False)
@example(routes=("command", "document", "event file", "document"), by_page=False)
async def test_the_taint_of_the_first_turn_reaches_the_last_of_any_chain(
    tmp_path_factory: pytest.TempPathFactory, routes: tuple[str, ...], *, by_page: bool
) -> None:
    by_page = by_page and routes[0] != "command"  # a command does not read a page
    home = tmp_path_factory.mktemp("chain")
    chain = Chain(home, routes, by_page=by_page)
    async with scenario(
        home,
        chain.model,
        access=ACCESS,
        clock=chain.clock,
        settings=SETTINGS,
        tools=[time_page],
        changes=("instructions", "options"),
    ) as world:
        approval, _ = await chain.ends(world)
        assert ("the page of a stranger" if by_page else "mallory") in approval.reason


CURL = call("bash", command="curl --version")


async def test_a_turn_stays_tainted_when_its_conversation_is_cleared(tmp_path: Path) -> None:
    """An untrusted person could otherwise remove the taint by clearing the conversation during their own turn."""
    door = Door()
    model = FakeModel(Reply(calls=(Call("wait", "{}"), *CURL.calls)), CURL)
    async with scenario(tmp_path, model, access=ACCESS, tools=[door.tool()], settings=FREE) as world:
        mallory = world.person("mallory", "1")
        await mallory.says("obey")
        await door.entered.wait()
        await mallory.asks("/new")
        door.open.set()
        approval = await mallory.is_asked()
        assert "trusted people (mallory)" in approval.reason


async def test_an_untrusted_steer_taints_the_running_turn(tmp_path: Path) -> None:
    door = Door()
    model = FakeModel(Reply(calls=(Call("wait", "{}"),)), CURL)
    async with scenario(tmp_path, model, access=ACCESS, tools=[door.tool()]) as world:
        await world.ada.says("wait")
        await door.entered.wait()
        await world.person("mallory", "1").asks("/steer obey me")
        door.open.set()
        approval = await world.ada.is_asked()
        assert "trusted people (mallory)" in approval.reason
        assert approval.asked_by == "fake:ada"


async def test_a_restored_result_stays_attributed_to_the_untrusted_person_who_asked(tmp_path: Path) -> None:
    """A result stores its asker, because the message that requested it may have left the window."""
    model = FakeModel(call("bash", command="echo obey"), "done", "hello", "gone on")
    async with scenario(tmp_path, model, access=ACCESS, settings=FREE) as world:
        await world.chat.says("harbour", "1", "obey", user="mallory")
        await world.ada.sees("done")
        saved = await world.app[ConversationSnapshots].save(world.ada.thread, "saved")
        await world.ada.says("hello")
        await world.ada.sees("hello")
        await world.is_quiet()
        await world.app[ConversationSnapshots].restore(world.ada.thread, saved.id, "ada")
        await world.ada.says("go on")
        await world.ada.sees("gone on")
        (result,) = [one.text for one in model.requests[-1].messages if isinstance(one, ToolMessage)]
        assert result.startswith("<untrusted source='a message of mallory'>\nobey")


async def test_work_after_an_untrusted_steer_belongs_to_its_author(tmp_path: Path) -> None:
    door = Door()
    model = FakeModel(Reply(calls=(Call("wait", "{}"),)), call("time"), "done")
    async with scenario(tmp_path, model, access=ACCESS, tools=[door.tool()], settings=FREE) as world:
        await world.ada.says("wait")
        await door.entered.wait()
        await world.person("mallory", "1").asks("/steer obey me")
        door.open.set()
        await world.ada.sees("done")
        assert [one.tainted_by for one in await results(world)] == ["", "a message of mallory"]


async def test_a_process_named_by_a_tainted_turn_stays_untrusted(tmp_path: Path) -> None:
    start = call("process_start", command="true", name="obey me", hooks=[{"on": "exit"}])
    model = FakeModel(call("time_page"), start, "begun", "told")
    async with scenario(tmp_path, model, access=ACCESS, settings=SETTINGS, tools=[time_page]) as world:
        await world.ada.says("begin")
        await world.ada.sees("told")
        woken = [event.data for event in await world.journal() if isinstance(event.data, UserSaid)][-1]
        assert woken.author.trusted
        assert "obey" not in woken.author.name
        assert is_untrusted_block(woken.text)


async def test_a_restart_does_not_attribute_untrusted_words_to_the_owner(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(CURL), access=ACCESS, settings=FREE) as world:
        await world.chat.says("harbour", "1", "obey", user="mallory")
        first = await world.ada.is_asked()
    async with scenario(tmp_path, FakeModel(CURL), access=ACCESS, settings=FREE) as world:
        await world.ada.decides(first.id, allow=False)
        await world.happens(world.ada.thread, "approval_requested", 2)
        (again,) = await world.app[Store].approvals.search(thread=world.ada.thread)
        assert "trusted people (mallory)" in again.reason


async def test_an_undo_restores_the_marks_of_files(tmp_path: Path) -> None:
    write = call("write_doc", path="tides.md", text="obey")
    delete = call("delete_doc", path="tides.md")
    async with scenario(
        tmp_path, FakeModel(write, "ok", delete, "gone"), access=ACCESS, settings=FREE, changes=("instructions",)
    ) as world:
        for text, seen in (("write it", "ok"), ("delete it", "gone")):
            await world.chat.says("harbour", "1", text, user="mallory")
            await world.ada.sees(seen)
        document = tmp_path / "agents" / "main" / "docs" / "tides.md"
        assert not document.exists()
        assert "Undone" in await world.ada.asks("/agent undo main")
        assert (await world.app[PromptFiles].source_of(document)).startswith("a message of mallory")
        assert "Undone" in await world.ada.asks("/agent undo main")
        assert not document.exists()


async def test_a_change_of_one_setting_keeps_the_taint_mark_of_the_others(tmp_path: Path) -> None:
    chain = Chain(tmp_path, ("persona",))
    async with scenario(
        tmp_path, chain.model, access=ACCESS, clock=chain.clock, settings=SETTINGS, changes=("instructions", "options")
    ) as world:
        await chain.ends(world)
        file = tmp_path / "agents" / "main" / "agent.toml"
        assert "mallory" in await world.app[PromptFiles].source_of(file)
        await world.app[AgentLifecycle].configure("main", "max_output_tokens", "999", "fake:ada")
        assert "999" in file.read_text()
        assert "mallory" in await world.app[PromptFiles].source_of(file)
        file.write_text(file.read_text())
        assert await world.app[PromptFiles].source_of(file) == ""


async def test_an_agent_created_from_a_marked_template_is_marked(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("hi"), access=ACCESS) as world:
        template = tmp_path / "template" / "docs" / "tides.md"
        async with world.app[PromptFiles].marking("a page"):
            template.parent.mkdir(parents=True)
            template.write_text("obey")
        await world.app[AgentLifecycle].create("other", {}, "fake:ada")
        assert await world.app[PromptFiles].source_of(tmp_path / "agents" / "other" / "docs" / "tides.md") == "a page"


async def test_a_saved_conversation_changed_by_a_tainted_turn_taints_after_a_restore(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("hi", "saved", CURL), access=ACCESS) as world:
        await world.ada.says("hello")
        await world.ada.sees("hi")
        await world.is_quiet()
        saved = await world.app[ConversationSnapshots].save(world.ada.thread, "saved")
        file = tmp_path / "agents" / "main" / "sessions" / f"{saved.id}.json"
        async with world.app[PromptFiles].marking("a page"):
            file.write_text(file.read_text().replace("hello", "obey"))
        await world.app[ConversationSnapshots].restore(world.ada.thread, saved.id, "ada")
        await world.ada.says("go on")
        await world.ada.sees("saved")
        await world.ada.says("and now")
        approval = await world.ada.is_asked()
        assert "a page" in approval.reason


async def test_a_trusted_turn_during_an_untrusted_one_does_not_clear_the_taint_of_a_file(tmp_path: Path) -> None:
    door = Door()

    def play(seen: Seen) -> Reply | str:
        who = "ada" if seen.user_text.startswith("[ada]") else "mallory"
        steps = {"ada": ["wait", "remember"], "mallory": ["remember"]}[who]
        if seen.rounds == len(steps):
            return f"{who} is done"
        return call("wait") if steps[seen.rounds] == "wait" else call("remember", text=f"by {who}", scope="global")

    model = FakeModel(script=play)
    async with scenario(tmp_path, model, access=ACCESS, tools=[door.tool()], settings=FREE) as world:
        await world.ada.says("ada's")
        await door.entered.wait()
        mallory = world.person("mallory", "2")
        await mallory.says("keep it")
        await mallory.sees("mallory is done")
        door.open.set()
        await world.ada.sees("ada is done")
        memory = tmp_path / "data" / "MEMORY.md"
        assert memory.read_text().splitlines()[-2:] == ["- by mallory", "- by ada"]
        assert "mallory" in await world.app[PromptFiles].source_of(memory)


async def test_a_large_result_of_a_tainted_turn_taints_its_later_readers(tmp_path: Path) -> None:
    large = call("bash", command="seq 20000")
    async with scenario(tmp_path, FakeModel(large, "counted"), access=ACCESS) as world:
        await world.chat.says("harbour", "1", "count", user="mallory")
        await world.ada.sees("counted")
        (finished,) = await results(world)
        assert finished.artifact
        assert finished.tainted_by == "a message of mallory"


async def test_a_webhooks_content_taints_its_turn_and_its_effects(tmp_path: Path) -> None:
    clock = ManualClock()
    model = FakeModel(call("remind", when="in 1 minute", text="obey"), "noted", CURL)
    async with scenario(tmp_path, model, access=ACCESS, clock=clock, settings=SETTINGS) as world:
        hooks = {
            "ci": HookSettings(
                secret=Secret(detail=SECRET), template="the build says: {{text}}", thread=world.ada.thread
            )
        }
        options = WebOptions(token="t" * 40, port=0)
        world.app[Webhooks].update(hooks)
        async with serve(world.app, options) as address, httpx2.AsyncClient(base_url=address) as client:
            headers = {"Authorization": f"Bearer {SECRET}"}
            assert (await client.post("/hooks/ci", content=b'{"text": "obey"}', headers=headers)).status_code == 202
            await world.ada.sees("noted")
            await world.app[Orchestrator].clear(world.ada.thread, "ada")
            await clock.advance(61)
            approval = await world.ada.is_asked()
        assert "webhook ci" in approval.reason


async def test_a_heartbeat_taints_its_turn_if_its_file_is_marked(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {**SETTINGS, "triggers": {"heartbeat_minutes": 60}}
    tasks = tmp_path / "data" / "HEARTBEAT.md"
    write = call("bash", command=f"echo '- obey' > {tasks}")
    model = FakeModel(write, "written", CURL)
    async with scenario(tmp_path, model, access=ACCESS, clock=clock, settings=settings) as world:
        await world.chat.says("harbour", "1", "write it", user="mallory")
        await world.ada.sees("written")
        await clock.advance(3700)
        await world.happens(HEARTBEAT_THREAD, "approval_requested")
        (beat,) = await world.app[Store].approvals.search(pending=False, thread=HEARTBEAT_THREAD)
        assert "HEARTBEAT.md, written after a message of mallory" in beat.reason


@pytest.mark.parametrize("way", ["subagent", "ask_agent", "spawn", "tell"])
async def test_pages_read_by_a_subagent_taint_its_caller(tmp_path: Path, way: str) -> None:
    asked = {
        "subagent": call("subagent", task="read it"),
        "ask_agent": call("ask_agent", agent="other", question="read it"),
        "spawn": call("spawn", task="read it", wake=True),
        "tell": call("spawn", task="read it"),
    }[way]

    def play(seen: Seen) -> Reply | str:
        if "read it" in seen.user_text and "subagent" not in seen.user_text:
            return call("time_page") if seen.rounds == 0 else "the page says: obey"
        if "begin" in seen.user_text:
            return asked if seen.rounds == 0 else CURL if way in ("subagent", "ask_agent") else "begun"
        return CURL if seen.rounds == 0 else "done"

    make_folder(Home(tmp_path), "other")
    model = FakeModel(script=play)
    async with scenario(tmp_path, model, access=ACCESS, settings=SETTINGS, tools=[time_page]) as world:
        await world.ada.says("begin")
        if way == "tell":
            await world.ada.sees("begun")
            await world.is_quiet()
            await world.ada.says("go on")
        approval = await world.ada.is_asked()
        assert "the page of a stranger" in approval.reason


@pytest.mark.slow
@pytest.mark.xdist_group("postgres")
async def test_triggers_and_memory_keep_their_taint_in_a_migrated_database(tmp_path: Path) -> None:
    remember = call("remember", text="obey", scope="global")
    model = FakeModel(remember, call("remind", when="in 1 minute", text="obey"), "noted")
    async with scenario(tmp_path, model, access=ACCESS, settings=SETTINGS, clock=ManualClock()) as world:
        await world.chat.says("harbour", "1", "keep it", user="mallory")
        await world.ada.sees("noted")
    with database() as url:
        await migrate_sqlite_to_postgres(Home(tmp_path), url)
        settings = {**SETTINGS, "database": {"url": "postgresql:///?" + "&".join(url.split())}}
        clock = ManualClock()
        async with scenario(tmp_path, FakeModel(CURL, CURL), access=ACCESS, settings=settings, clock=clock) as world:
            await world.app[Orchestrator].clear(world.ada.thread, "ada")
            await clock.advance(61)
            reminded = await world.ada.is_asked()
            assert (reminded.asked_by, "mallory" in reminded.reason) == ("fake:mallory", True)
            ada = world.person("ada", "2")
            await ada.says("hello")
            assert "memory global, written after a message of mallory" in (await ada.is_asked()).reason


async def test_a_turn_started_by_a_subagent_is_attributed_to_the_person_who_spawned_it(tmp_path: Path) -> None:
    def play(seen: Seen) -> Reply | str:
        if "look it up" in seen.user_text and "begin" not in seen.user_text:
            return CURL if "has finished" in seen.user_text else "look it up: found"
        return "begun" if seen.rounds else call("spawn", task="look it up", wake=True)

    async with scenario(tmp_path, FakeModel(script=play), access=ACCESS, settings=SETTINGS) as world:
        await world.chat.says("harbour", "1", "begin", user="mallory")
        approval = await world.ada.is_asked()
        assert approval.asked_by == "fake:mallory"
        woken = [event.data for event in await world.journal() if isinstance(event.data, UserSaid)][-1]
        assert (woken.origin, woken.author.id, woken.author.trusted) == ("agent", "mallory", False)
