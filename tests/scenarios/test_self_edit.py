"""Agents that change themselves: asked for with the diff, kept in git, audited, taken back."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.scenarios.delegation import results

from shoal.domain.commands import CommandRequest
from shoal.domain.ids import make_thread_id
from shoal.domain.messages import Author
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import World, scenario

SKILL = "---\nname: tide-table\ndescription: Reads tide tables.\n---\nLook at the moon.\n"


def edit(tool: str, **arguments: str) -> Reply:
    return Reply(calls=(Call(tool, json.dumps(arguments)),))


def home(world: World) -> Path:
    return world.app.home.agent("main")


def log_of(folder: Path) -> list[str]:
    found = subprocess.run(
        ["git", "-C", str(folder), "log", "--format=%an: %B"], capture_output=True, text=True, check=True
    )
    return found.stdout.splitlines()


async def undo(world: World) -> str:
    thread = make_thread_id("web", "lobby", "x")
    return await world.app.commands.command(
        CommandRequest(
            thread, Author("owner", trusted=True), "agent", "undo main", "k", world.app.clock.now(), direct=True
        )
    )


async def test_a_document_is_asked_for_with_its_diff_and_counts_from_the_next_turn(tmp_path: Path) -> None:
    model = FakeModel(edit("write_doc", path="tides.md", text="Low tide at six.\n"), "written", "next")
    async with scenario(tmp_path, model, profile="standard") as world:
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
        audited = [row.entry for row in await world.app.store.audit.tail(50) if row.entry.kind == "self_edit"]
        assert [entry.detail.startswith("before nothing after ") for entry in audited] == [True]


async def test_undo_takes_changes_back_one_by_one(tmp_path: Path) -> None:
    model = FakeModel(
        edit("write_doc", path="a.md", text="one\n"),
        edit("edit_doc", path="a.md", old_string="one", new_string="two"),
        edit("set_system_prompt", text="You watch the harbour."),
        "done",
    )
    async with scenario(tmp_path, model) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        assert world.app.agents.spec("main").system_prompt == "You watch the harbour."
        assert "set_system_prompt" in await undo(world)
        assert world.app.agents.spec("main").system_prompt == ""
        assert "edit_doc" in await undo(world)
        assert (home(world) / "docs" / "a.md").read_text() == "one\n"
        assert "write_doc" in await undo(world)
        assert not (home(world) / "docs" / "a.md").exists()
        assert "nothing left" in await undo(world)


async def test_what_people_changed_since_is_not_taken_back(tmp_path: Path) -> None:
    model = FakeModel(edit("write_doc", path="a.md", text="one\n"), "done")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        (home(world) / "docs" / "a.md").write_text("mine\n")
        assert "was changed since" in await undo(world)
        assert (home(world) / "docs" / "a.md").read_text() == "mine\n"


@pytest.mark.parametrize("path", ["../agent.toml", "/etc/passwd", "a/../../b", ".git/config", "link/x", ""])
async def test_documents_stay_below_docs(tmp_path: Path, path: str) -> None:
    model = FakeModel(edit("write_doc", path=path, text="x"), "refused")
    async with scenario(tmp_path, model) as world:
        (home(world) / "docs").mkdir(parents=True, exist_ok=True)
        (home(world) / "docs" / "link").symlink_to(tmp_path)
        await world.ada.says("go")
        await world.ada.sees("refused")
        assert (await results(world))[0].is_error
        assert not (home(world) / ".git").exists()


async def test_only_a_granter_widens_the_profile_and_anybody_makes_it_stricter(tmp_path: Path) -> None:
    model = FakeModel(edit("set_permissions", profile="open"), edit("set_permissions", profile="locked"), "done")
    async with scenario(tmp_path, model, profile="standard") as world:
        await world.ada.says("be free")
        approval = await world.ada.is_asked()
        assert approval.actions == ("tool:set_permissions:locked",), "the wider one was not even asked for"
        assert "may not grant" in (await results(world))[0].text
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("done")
        assert world.app.agents.spec("main").profile == "locked"


async def test_an_owner_widens_the_profile(tmp_path: Path) -> None:
    model = FakeModel(edit("set_permissions", profile="open"), "done")
    settings = {"permissions": {"default_profile": "standard", "approvers": ["fake:ada"]}}
    async with scenario(tmp_path, model, settings=settings) as world:
        await world.ada.says("be free")
        approval = await world.ada.is_asked()
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("done")
        assert world.app.agents.spec("main").profile == "open"


async def test_a_skill_needs_its_front_matter_and_is_found_then(tmp_path: Path) -> None:
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


async def test_nothing_is_undone_where_nothing_was_changed(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("x")) as world:
        assert "has not changed itself" in await undo(world)
