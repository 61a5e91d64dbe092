"""Corrected and forgotten memories: the next request contains the change, and the history is kept."""

import json
from pathlib import Path

import pytest

from shoal.features.memory.book import MemoryBook
from shoal.kernel.errors import Conflict, NotFound
from shoal.kernel.home import Home
from shoal.kernel.messages import ToolMessage
from shoal.store.store import Store
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import World, scenario
from shoal.tools.prompt_files import PromptFiles
from shoal.tools.tainted_files import MarkedFiles


def remember(**arguments: str) -> Reply:
    return Reply(calls=(Call("remember", json.dumps({"text": "", **arguments})),))


def result(model: FakeModel) -> str:
    return next(one.text for one in reversed(model.requests[-1].messages) if isinstance(one, ToolMessage))


def sent(model: FakeModel, at: int = -1) -> str:
    """Return the text of a request without the messages of its own conversation."""
    request = model.requests[at]
    return request.system + "".join(
        m.text.rpartition("<context>")[2] for m in request.messages if "<context>" in m.text
    )


def memory(world: World) -> Path:
    return world.app[Home].data / "MEMORY.md"


async def test_forgotten_memories_are_in_no_later_request(tmp_path: Path) -> None:
    model = FakeModel("one", "two", "three", remember(replaces="The berth costs ten crowns."), "gone", "four")
    async with scenario(tmp_path, model) as world:
        bob = world.person("bob", "2")
        for person, answer in ((world.ada, "one"), (bob, "two")):
            await person.says("hello")
            await person.sees(answer)
        memory(world).write_text("- the berth costs ten crowns\n- the tide turns at six\n")
        await bob.says("what is new?")
        await bob.sees("three")
        assert "ten crowns" in sent(model)
        await world.ada.says("forget what the berth costs")
        await world.ada.sees("gone")
        assert memory(world).read_text() == "- the tide turns at six\n"
        await bob.says("and now?")
        await bob.sees("four")
        assert "ten crowns" not in str(model.requests[-1])
        assert "the tide turns at six" in model.requests[-1].system


async def test_an_entry_is_corrected_in_place(tmp_path: Path) -> None:
    model = FakeModel(remember(text="the berth costs twelve crowns", replaces="ten crowns"), "corrected")
    async with scenario(tmp_path, model) as world:
        memory(world).write_text("- before\n- the berth costs ten crowns\n- after\n")
        await world.ada.says("it is twelve")
        await world.ada.sees("corrected")
        assert memory(world).read_text() == "- before\n- the berth costs twelve crowns\n- after\n"
        assert "Corrected (global)" in result(model)
        (change,) = await world.app[MemoryBook].history.newest(9)
        assert (change.file, change.line, change.agent) == ("data/MEMORY.md", 1, "main")
        assert change.removed == ("- the berth costs ten crowns",)
        entries = [row.entry for row in await world.app[Store].audit.tail(1000, chain_name=world.ada.thread)]
        assert [entry.action for entry in entries if entry.kind == "memory"] == ["change data/MEMORY.md"]
        assert not any("crowns" in entry.action for entry in entries if entry.kind == "memory")


async def test_a_line_of_an_old_note_is_corrected_and_keeps_its_time(tmp_path: Path) -> None:
    model = FakeModel(remember(text="sold three boats", replaces="sold two boats"), "corrected")
    async with scenario(tmp_path, model) as world:
        note = world.app[Home].data / "memory/202501/20250102.md"
        note.parent.mkdir(parents=True)
        note.write_text("- 09:15 sold two boats\n")
        await world.ada.says("it was three")
        await world.ada.sees("corrected")
        assert note.read_text() == "- 09:15 sold three boats\n"


async def test_an_ambiguous_memory_change_is_refused(tmp_path: Path) -> None:
    model = FakeModel(remember(replaces="boat"), "asked", remember(replaces="a whale"), "nothing")
    async with scenario(tmp_path, model) as world:
        text = "- the red boat leaks\n- the blue boat is sold\n"
        memory(world).write_text(text)
        await world.ada.says("forget the boat")
        await world.ada.sees("asked")
        assert "- the red boat leaks (global)\n- the blue boat is sold (global)" in result(model)
        await world.ada.says("forget the whale")
        await world.ada.sees("nothing")
        assert "Nothing that you remember here contains 'a whale'" in result(model)
        assert memory(world).read_text() == text


async def test_a_fact_is_forgotten_in_every_file(tmp_path: Path) -> None:
    model = FakeModel(remember(replaces="likes tea"), "gone")
    async with scenario(tmp_path, model) as world:
        here = world.app[Home].channel(world.ada.thread) / "MEMORY.md"
        here.parent.mkdir(parents=True, exist_ok=True)
        memory(world).write_text("- Likes tea.\n- x\n")
        here.write_text("- likes tea\n")
        await world.ada.says("no tea any more")
        await world.ada.sees("gone")
        assert (memory(world).read_text(), here.read_text()) == ("- x\n", "")


async def test_a_private_chat_changes_only_the_memory_of_its_person(tmp_path: Path) -> None:
    model = FakeModel(remember(replaces="shared fact"), "refused", remember(replaces="own fact"), "gone")
    async with scenario(tmp_path, model) as world:
        owner = world.person("ada", "dm", "dm", direct=True)
        memory(world).write_text(
            "- shared fact\n- own fact <!-- only fake:ada -->\n- own fact <!-- only fake:bob -->\n"
        )
        await owner.says("forget the shared one")
        await owner.sees("refused")
        assert "To change what everyone can see" in result(model)
        await owner.says("forget mine")
        await owner.sees("gone")
        assert memory(world).read_text() == "- shared fact\n- own fact <!-- only fake:bob -->\n"


async def test_a_memory_change_is_reverted_once_and_only_if_its_lines_are_unchanged(tmp_path: Path) -> None:
    model = FakeModel(remember(replaces="b"), "gone", remember(text="d", scope="global"), "added")
    async with scenario(tmp_path, model) as world:
        memory(world).write_text("- a\n- b\n- c\n")
        for words, answer in (("forget b", "gone"), ("remember d", "added")):
            await world.ada.says(words)
            await world.ada.sees(answer)
        added, gone = await world.app[MemoryBook].history.newest(9)
        book = world.app[MemoryBook]
        assert (await book.undo(gone.id, "web:owner")).id == gone.id
        assert memory(world).read_text() == "- a\n- b\n- c\n- d\n"
        with pytest.raises(Conflict, match="already been undone"):
            await book.undo(gone.id, "web:owner")
        memory(world).write_text("- a\n")
        with pytest.raises(Conflict, match="has changed"):
            await book.undo(added.id, "web:owner")
        assert memory(world).read_text() == "- a\n"
        with pytest.raises(NotFound):
            await book.undo("nosuch", "web:owner")


async def test_a_restored_memory_keeps_its_taint(tmp_path: Path) -> None:
    model = FakeModel(remember(text="call mallory", scope="global"), "kept", remember(replaces="call mallory"), "gone")
    async with scenario(tmp_path, model, profile="open") as world:
        files, home = world.app[PromptFiles], world.app[Home]
        async with world.app[MarkedFiles].during([home.root], "a page", 60):
            await world.ada.says("remember it")
            await world.ada.sees("kept")
        assert await files.source_of(memory(world)) == "a page"
        await world.ada.says("forget it")
        approval = await world.ada.is_asked()
        assert approval.actions == ("tool:remember:global forget call mallory",)
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("gone")
        memory(world).write_text("")  # a manual edit makes the owner the author of the file
        assert not await files.source_of(memory(world))
        newest = (await world.app[MemoryBook].history.newest(1))[0]
        await world.app[MemoryBook].undo(newest.id, "web:owner")
        assert "call mallory" in memory(world).read_text()
        assert "a page" in await files.source_of(memory(world))


async def test_a_group_members_private_memory_is_only_in_their_own_prompts(tmp_path: Path) -> None:
    fact = "ada is allergic to nuts"
    kept = remember(text=fact, scope="person")
    model = FakeModel(kept, "kept", "others", kept, "again", "hello ada", "hello bob")
    async with scenario(tmp_path, model) as world:
        bob = world.person("bob", "2")
        await world.ada.says("remember that for me alone")
        await world.ada.sees("kept")
        assert memory(world).read_text() == f"- {fact} <!-- only fake:ada -->\n"
        await bob.says("what do you know?")
        await bob.sees("others")
        assert "nuts" not in str(model.requests[-1])
        await world.ada.says("once more")
        await world.ada.sees("again")
        assert "Remembered" in result(model), "a group is not told of what somebody's own memory has"
        assert memory(world).read_text().count(fact) == 1
        for name, answer, knows in (("ada", "hello ada", True), ("bob", "hello bob", False)):
            alone = world.person(name, f"dm-{name}", f"dm-{name}", direct=True)
            await alone.says("hi")
            await alone.sees(answer)
            assert (fact in model.requests[-1].system) is knows


# ---- /memory ----


def id_of(listed: str, words: str) -> str:
    return next(line for line in listed.splitlines() if words in line).split("`")[1]


async def test_people_list_correct_and_forget_what_is_remembered(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("one")) as world:
        assert await world.ada.asks("/memory") == "I remember nothing here yet."
        memory(world).write_text("# Facts\n- the berth costs ten crowns\n- the tide turns at six\n")
        listed = await world.ada.asks("/memory")
        assert [line.partition("` ")[2] for line in listed.splitlines()] == [
            "the berth costs ten crowns (global)",
            "the tide turns at six (global)",
        ]
        assert await world.ada.asks("/memory Tide six") == listed.splitlines()[1]
        assert await world.ada.asks("/memory list nothing") == "I remember nothing that contains these words."
        told = await world.ada.asks(f"/memory amend {id_of(listed, 'berth')} the berth costs twelve crowns")
        assert told.startswith("Corrected (global): the berth costs ten crowns\nNew text: the berth costs twelve")
        assert "Forgotten (global): the tide turns at six" in await world.ada.asks("/memory forget THE TIDE turns")
        assert memory(world).read_text() == "# Facts\n- the berth costs twelve crowns\n"
        await world.ada.says("hello")
        await world.ada.sees("one")
        assert "ten crowns" not in world.model.requests[-1].system
        assert "twelve crowns" in world.model.requests[-1].system


async def test_a_memory_change_by_command_is_stored_audited_and_reverted(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel()) as world:
        memory(world).write_text("- the tide turns at six\n")
        await world.ada.asks("/memory amend tide turns -> the tide turns at seven")
        (change,) = await world.app[MemoryBook].history.newest(9)
        assert (change.changed_by, change.agent, change.removed) == (
            "fake:ada",
            "main",
            ("- the tide turns at six",),
        )
        kinds = [
            (one.entry.kind, one.entry.action)
            for one in await world.app[Store].audit.tail(1000, chain_name=world.ada.thread)
        ]
        assert ("check", "tool:remember:global amend to the tide turns at seven: the tide turns at six") in kinds
        assert ("memory", "change data/MEMORY.md") in kinds
        assert "no changes here that you can undo" in await world.person("bob", "2").asks("/memory undo")
        assert await world.ada.asks("/memory undo") == "Undone. Restored text: the tide turns at six"
        assert memory(world).read_text() == "- the tide turns at six\n"
        assert "no changes here that you can undo" in await world.ada.asks("/memory undo")


async def test_memory_commands_have_the_limits_of_the_tool(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(), profile="locked") as world:
        memory(world).write_text("- the tide turns at six\n")
        assert "tide" in await world.ada.asks("/memory")
        told = await world.ada.asks("/memory forget tide")
        assert told == "main's permissions deny this change: tool:remember:global forget the tide turns at six"
        assert memory(world).read_text() == "- the tide turns at six\n"


async def test_a_private_line_is_listed_and_changed_only_by_the_person_it_belongs_to(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel()) as world:
        memory(world).write_text("- ada is allergic <!-- only fake:ada -->\n- the tide turns at six\n")
        alone = world.person("ada", "dm", "dm", direct=True)
        assert "allergic" not in await world.ada.asks("/memory")
        assert "No entry that you can change here" in await world.ada.asks("/memory forget allergic")
        listed = await alone.asks("/memory")
        assert "ada is allergic (global, only for you)" in listed
        assert "the tide turns at six (global, for everyone)" in listed
        told = await alone.asks(f"/memory forget {id_of(listed, 'tide')}")
        assert "To change what everyone can see" in told
        await alone.asks("/memory forget allergic")
        assert memory(world).read_text() == "- the tide turns at six\n"
        assert "no changes here that you can undo" in await world.ada.asks("/memory undo")
        assert "Restored text: ada is allergic" in await alone.asks("/memory undo")


async def test_an_ambiguous_command_asks_for_details(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel()) as world:
        memory(world).write_text("- the north pier floods\n- the south pier floods\n")
        told = await world.ada.asks("/memory forget pier")
        assert "Specify one by its id" in told
        assert "north" in told
        assert "Specify the entry" in await world.ada.asks("/memory forget")
        assert "Enter the new text" in await world.ada.asks("/memory amend north pier")
        assert "/memory` shows what I remember" in await world.ada.asks("/memory forget zebra")
        assert memory(world).read_text() == "- the north pier floods\n- the south pier floods\n"
