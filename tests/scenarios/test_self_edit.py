"""Agents that change themselves: approved with a diff, committed to git, audited, and revertible."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.scenarios.delegation import results

from shoal.agents.lifecycle import AgentLifecycle
from shoal.agents.registry import AgentRegistry
from shoal.kernel.clock import Clock
from shoal.kernel.commands import CommandRequest
from shoal.kernel.home import Home
from shoal.kernel.ids import make_thread_id
from shoal.kernel.messages import Author
from shoal.store.store import Store
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.commands import CommandRouter

SKILL = "---\nname: tide-table\ndescription: Reads tide tables.\n---\nLook at the moon.\n"


def edit(tool: str, **arguments: str) -> Reply:
    return Reply(calls=(Call(tool, json.dumps(arguments)),))


def home(world: World) -> Path:
    return world.app[Home].agent("main")


def log_of(folder: Path) -> list[str]:
    found = subprocess.run(
        ["git", "-C", str(folder), "log", "--format=%an: %B"], capture_output=True, text=True, check=True
    )
    return found.stdout.splitlines()


async def undo(world: World) -> str:
    thread = make_thread_id("web", "lobby", "x")
    return await world.app[CommandRouter].command(
        CommandRequest(
            thread, Author("owner", trusted=True), "agent", "undo main", "k", world.app[Clock].now(), direct=True
        )
    )


async def test_a_document_change_asks_with_its_diff_and_applies_from_the_next_turn(tmp_path: Path) -> None:
    model = FakeModel(edit("write_doc", path="tides.md", text="Low tide at six.\n"), "written", "next")
    async with scenario(tmp_path, model, profile="standard", changes=("instructions",)) as world:
        await world.ada.says("remember the tides")
        approval = await world.ada.is_asked()
        assert approval.actions == ("tool:write_doc:tides.md",)
        assert "+Low tide at six." in approval.shown
        assert not (home(world) / "docs" / "tides.md").exists()
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("written")
        assert (home(world) / "docs" / "tides.md").read_text() == "Low tide at six.\n"
        await world.ada.says("and now?")
        await world.ada.sees("next")
        systems = [request.system for request in model.requests]
        assert systems[0] == systems[1]
        assert any("Low tide at six." in message.text for message in model.requests[2].messages) or (
            "Low tide at six." in systems[2]
        )
        log = log_of(home(world))
        assert log[0] == "main: write_doc tides.md"
        assert "Approved-by: ada" in log
        audited = [row.entry for row in await world.app[Store].audit.tail(50) if row.entry.kind == "self_edit"]
        assert [entry.detail.startswith("before nothing after ") for entry in audited] == [True]


async def test_undo_reverts_changes_one_by_one(tmp_path: Path) -> None:
    model = FakeModel(
        edit("write_doc", path="a.md", text="one\n"),
        edit("edit_doc", path="a.md", old_string="one", new_string="two"),
        edit("set_system_prompt", text="You watch the harbour."),
        "done",
    )
    async with scenario(tmp_path, model) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        assert world.app[AgentRegistry].spec("main").system_prompt == "You watch the harbour."
        assert "set_system_prompt" in await undo(world)
        assert world.app[AgentRegistry].spec("main").system_prompt == ""
        assert "edit_doc" in await undo(world)
        assert (home(world) / "docs" / "a.md").read_text() == "one\n"
        assert "write_doc" in await undo(world)
        assert not (home(world) / "docs" / "a.md").exists()
        assert "Nothing is left" in await undo(world)


async def test_later_changes_by_people_are_not_reverted(tmp_path: Path) -> None:
    model = FakeModel(edit("write_doc", path="a.md", text="one\n"), "done")
    async with scenario(tmp_path, model, changes=("instructions",)) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        (home(world) / "docs" / "a.md").write_text("mine\n")
        assert "has later changes" in await undo(world)
        assert (home(world) / "docs" / "a.md").read_text() == "mine\n"


@pytest.mark.parametrize("path", ["../agent.toml", "/etc/passwd", "a/../../b", ".git/config", "link/x", ""])
async def test_documents_cannot_leave_the_docs_folder(tmp_path: Path, path: str) -> None:
    model = FakeModel(edit("write_doc", path=path, text="x"), "refused")
    async with scenario(tmp_path, model) as world:
        (home(world) / "docs").mkdir(parents=True, exist_ok=True)
        (home(world) / "docs" / "link").symlink_to(tmp_path)
        await world.ada.says("go")
        await world.ada.sees("refused")
        assert (await results(world))[0].is_error
        assert not (home(world) / ".git").exists()


async def test_only_a_granter_widens_the_profile_and_anyone_tightens_it(tmp_path: Path) -> None:
    model = FakeModel(edit("set_permissions", profile="open"), edit("set_permissions", profile="locked"), "done")
    async with scenario(tmp_path, model, profile="standard") as world:
        await world.ada.says("be free")
        approval = await world.ada.is_asked()
        assert approval.actions == ("tool:set_permissions:locked",), "the wider one was not even asked for"
        assert "cannot grant" in (await results(world))[0].text
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("done")
        assert world.app[AgentRegistry].spec("main").profile == "locked"


async def test_an_owner_widens_the_profile(tmp_path: Path) -> None:
    model = FakeModel(edit("set_permissions", profile="open"), "done")
    settings = {"permissions": {"default_profile": "standard", "approvers": ["fake:ada"]}}
    async with scenario(tmp_path, model, settings=settings) as world:
        await world.ada.says("be free")
        approval = await world.ada.is_asked()
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("done")
        assert world.app[AgentRegistry].spec("main").profile == "open"


async def test_a_skill_is_found_once_it_has_front_matter(tmp_path: Path) -> None:
    model = FakeModel(
        edit("write_skill", name="tide-table", text="no front matter"),
        edit("write_skill", name="tide-table", text=SKILL),
        "learnt",
        edit("delete_skill", name="tide-table"),
        "forgotten",
    )
    async with scenario(tmp_path, model) as world:
        await world.ada.says("learn")
        await world.ada.sees("learnt")
        assert [result.is_error for result in await results(world)] == [True, False]
        assert (home(world) / "skills" / "tide-table" / "SKILL.md").read_text() == SKILL
        await world.ada.says("forget")
        await world.ada.sees("forgotten")
        assert not (home(world) / "skills" / "tide-table" / "SKILL.md").exists()


async def test_undo_without_changes_does_nothing(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("x")) as world:
        assert "has not changed itself" in await undo(world)


APPROVERS = {"permissions": {"default_profile": "standard", "approvers": ["fake:ada"]}}


def shared(world: World) -> Path:
    return world.app[Home].data / "SYSTEM.md"


@pytest.mark.parametrize("file", ["IDENTITY.md", "SOUL.md", "AGENTS.md", "USER.md"])
async def test_a_persona_file_change_asks_with_its_diff_and_is_reverted(tmp_path: Path, file: str) -> None:
    model = FakeModel(edit("set_persona", file=file, text="Old salt.\nSays little.\n"), "changed", "next")
    async with scenario(tmp_path, model, profile="standard", changes=("instructions",)) as world:
        home(world).mkdir(parents=True, exist_ok=True)
        (home(world) / file).write_text("Young.\nSays little.\n")
        await world.ada.says("grow up")
        approval = await world.ada.is_asked()
        assert approval.actions == (f"tool:set_persona:{file}",)
        assert "-Young.\n+Old salt.\n Says little." in approval.shown
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("changed")
        assert (home(world) / file).read_text() == "Old salt.\nSays little.\n"
        await world.ada.says("and now?")
        await world.ada.sees("next")
        said = [*(message.text for message in model.requests[2].messages), model.requests[2].system]
        assert any("Old salt." in text for text in said)
        assert "set_persona" in await undo(world)
        assert (home(world) / file).read_text() == "Young.\nSays little.\n"
        details = [row.entry.action for row in await world.app[Store].audit.tail(50) if row.entry.kind == "self_edit"]
        assert sorted(details) == [f"set_persona {file}", f"take back: set_persona {file}"]


async def test_the_shared_agents_file_is_changed_in_place_and_reverted(tmp_path: Path) -> None:
    model = FakeModel(
        edit("set_persona", file="SYSTEM.md", text="jq is here.\n"),
        edit("set_persona", file="SYSTEM.md", text="jq and curl are here.\n"),
        "changed",
    )
    async with scenario(
        tmp_path, model, settings={"permissions": {"default_profile": "open", "approvers": ["fake:ada"]}}
    ) as world:
        await world.ada.says("note it")
        await world.ada.sees("changed")
        assert shared(world).read_text() == "jq and curl are here.\n"
        assert not (home(world) / "data").exists()
        assert "set_persona SYSTEM.md" in await undo(world)
        assert shared(world).read_text() == "jq is here.\n"
        shared(world).write_text("by hand\n")
        assert "has later changes" in await undo(world)
        shared(world).write_text("jq is here.\n")
        assert "set_persona SYSTEM.md (data/SYSTEM.md)" in await undo(world)
        assert not shared(world).exists()
        assert "Nothing is left" in await undo(world)


async def test_only_a_granter_changes_the_shared_agents_file(tmp_path: Path) -> None:
    model = FakeModel(edit("set_persona", file="SYSTEM.md", text="jq is here.\n"), "refused")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("note it")
        await world.ada.sees("refused")
        assert "is part of every agent's prompt" in (await results(world))[0].text
        assert not shared(world).exists()


async def test_another_file_is_refused_for_self_edits(tmp_path: Path) -> None:
    model = FakeModel(
        edit("set_persona", file="../secret.md", text="x"), edit("set_persona", file="SOUL.md", text="x"), "done"
    )
    async with scenario(tmp_path, model) as world:
        home(world).mkdir(parents=True, exist_ok=True)
        (home(world) / "SOUL.md").symlink_to(tmp_path / "elsewhere")
        await world.ada.says("go")
        await world.ada.sees("done")
        assert [result.is_error for result in await results(world)] == [True, True]
        assert "a link. Shoal does not follow links" in (await results(world))[1].text


async def test_anyone_shortens_the_list_of_tools_and_only_a_granter_extends_it(tmp_path: Path) -> None:
    def choose(*names: str) -> Reply:
        return Reply(calls=(Call("set_tools", json.dumps({"tools": names})),))

    model = FakeModel(choose("read", "set_tools"), "fewer", choose("read", "list", "set_tools"), choose(), "refused")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("read only")
        await world.ada.sees("fewer")
        assert world.app[AgentRegistry].spec("main").tools == ("read", "set_tools")
        await world.ada.says("more")
        await world.ada.sees("refused")
        assert ["cannot give you additional" in result.text for result in (await results(world))[1:]] == [True, True]
        assert [spec.name for spec in model.requests[-1].tools] == ["read", "set_tools"]
    model = FakeModel(choose("read", "list", "set_tools"), "more")
    settings = {"permissions": {"default_profile": "open", "approvers": ["fake:ada"]}}
    async with scenario(tmp_path, model, settings=settings) as world:
        await world.ada.says("more")
        await world.ada.sees("more")
        assert world.app[AgentRegistry].spec("main").tools == ("read", "list", "set_tools")
        assert "set_tools" in await undo(world)
        assert world.app[AgentRegistry].spec("main").tools == ("read", "set_tools")


async def test_a_tool_that_the_profile_denies_cannot_be_listed(tmp_path: Path) -> None:
    names = Reply(calls=(Call("set_tools", '{"tools": ["read", "bash"]}'), Call("set_tools", '{"tools": ["nets"]}')))
    settings = {
        "permissions": {
            "default_profile": "reader",
            "profiles": {"reader": {"extends": "locked", "allow": ["tool:set_tools:.*"]}},
            "approvers": ["fake:ada"],
        }
    }
    model = FakeModel(names, "refused")
    async with scenario(tmp_path, model, settings=settings) as world:
        await world.ada.says("give yourself a shell")
        await world.ada.sees("refused")
        denied, unknown = await results(world)
        assert "denies bash" in denied.text
        assert "No tool named 'nets'" in unknown.text
        assert world.app[AgentRegistry].spec("main").tools == ()


async def test_an_approval_covers_the_displayed_bytes(tmp_path: Path) -> None:
    model = FakeModel(edit("set_persona", file="SOUL.md", text="Calm.  \n\u202eyrgna"), "done")
    async with scenario(tmp_path, model, profile="standard", changes=("instructions",)) as world:
        await world.ada.says("be calm")
        approval = await world.ada.is_asked()
        assert approval.shown.endswith("+Calm.  \n+\\u{202e}yrgna")
        home(world).mkdir(parents=True, exist_ok=True)
        (home(world) / "SOUL.md").write_text("mine\n")
        await world.ada.decides(approval.id, allow=True)
        await world.happens(world.ada.thread, "tool_result")
        assert "The approved call would now do something different" in (await results(world))[0].text
        assert (home(world) / "SOUL.md").read_text() == "mine\n"


async def test_an_agent_sees_its_settings_and_only_visible_channels(tmp_path: Path) -> None:
    model = FakeModel(edit("my_settings"), "seen")
    async with scenario(tmp_path, model, profile="locked") as world:
        home(world).mkdir(parents=True, exist_ok=True)
        (home(world) / "agent.toml").write_text('fallback = ["spare"]\nbudget.tokens_per_day = 250000\n')
        for channel in ("harbour", "cabin"):
            place = make_thread_id("fake", channel, "0")
            await world.app[AgentLifecycle].bind("main", place, "web:owner")
        await world.ada.says("who are you?")
        await world.ada.sees("seen")
        (shown,) = await results(world)
        assert not shown.is_error
        lines = dict(line.split(": ", 1) for line in shown.text.splitlines())
        assert (lines["agent"], lines["model"], lines["fallback"], lines["profile"]) == (
            "main",
            "demo",
            "spare",
            "locked",
        )
        assert lines["budget"] == "tokens_per_day = 250,000"
        assert lines["bound channels"] == "fake:harbour"
        assert "my_settings" in lines["tools"].split(", ")
        assert "bash" not in lines["tools"]
