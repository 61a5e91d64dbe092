"""Files that are written from untrusted content stay untrusted on disk, even for a later conversation."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.scenarios.test_taint import asked, call, time_page

from shoal.kernel.clock import Clock
from shoal.kernel.events import ToolFinished, UserSaid
from shoal.kernel.messages import Attachment, Author, Prompt
from shoal.kernel.traits import Traits
from shoal.net.addresses import Fetched, FetchRequest
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.attachments import Attachments
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.functions import tool

CURL = call("bash", command="curl --version")
FETCHED = "what curl fetched"
"""The taint of the last call itself, after it was allowed."""
WRITE = call("write", path="notes.md", content="hostile")
READ = call("read", path="notes.md")


def clean_file(home: Path, name: str) -> None:
    """Create a file in the workspace. It exists before the conversation and is therefore trusted."""
    workspace = home / "agents" / "main" / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / name).write_text("plain\n")


async def taints(world: World) -> list[str]:
    return [event.data.tainted_by for event in await world.journal() if isinstance(event.data, ToolFinished)]


async def steered(world: World) -> None:
    """Let a turn read an untrusted page and follow its instructions. Then clear the conversation, which leaves the
    taint only in files.
    """
    await world.ada.says("read the page")
    await world.ada.sees("written")
    await world.app[Orchestrator].clear(world.ada.thread, "ada")


@pytest.mark.parametrize(
    "write",
    [
        WRITE,
        call("bash", command="echo hostile > notes.md"),
        call("bash", command="echo hostile > draft.md; cat draft.md > notes.md"),
    ],
    ids=lambda reply: reply.calls[0].arguments[:60],
)
async def test_files_written_by_a_steered_turn_taint_their_reader(tmp_path: Path, write: Reply) -> None:
    model = FakeModel(call("time_page"), write, "written", READ, CURL)
    async with scenario(tmp_path, model, tools=(time_page,)) as world:
        await steered(world)
        await world.ada.says("go on")
        await world.ada.is_asked()
        (request,) = await asked(world)
        assert "'notes.md', written after the page of a stranger" in request.reason


@pytest.mark.parametrize(
    "read",
    [
        call("read", path="/workspace/notes.md"),
        call("view", path="./notes.md"),
        call("list", path="."),
        call("edit", path="notes.md", old_string="hostile", new_string="hostile!"),
        call("bash", command="git diff --no-index /dev/null notes.md"),
        call("bash", command="cat notes.md"),
        call("bash", command="cat 'notes.md' | head"),
        call("bash", command="cat $PWD/notes.md"),
        call("bash", command="cat {notes,x}.md"),
        call("bash", command="v=notes; cat $v.md"),
        call("bash", command="cat /proc/self/cwd/notes.md"),
        call("bash", command="cat <(cat notes.md)"),
        call("bash", command="while read -r line; do printf '%s' \"$line\"; done < notes.md"),
        call("bash", command="cat *.md"),
        call("bash", command="head -n 3 ./n?tes.md < /dev/null"),
        call("bash", command="mkdir -p sub && cd sub && cat ../notes.md"),
        call("bash", command="x=notes.md; cat $x"),
        call("bash", command="grep -r hostile"),
        call("bash", command="grep -r hostile $PWD"),
        call("bash", command="tar cf - . | wc -c"),
        call("bash", command="echo more >> notes.md"),
        call("bash", command="tee -a notes.md < /dev/null"),
        call("bash", command="head -n 1 /dev/stderr 2>> notes.md"),
        call("bash", command="python3 -c 'print(open(\"notes.md\").read())'"),
    ],
    ids=lambda reply: f"{reply.calls[0].name} {reply.calls[0].arguments[:60]}",
)
async def test_every_way_of_reading_a_marked_file_taints(tmp_path: Path, read: Reply) -> None:
    model = FakeModel(call("time_page"), WRITE, "written", read, "done")
    async with scenario(tmp_path, model, tools=(time_page,)) as world:
        await steered(world)
        await world.ada.says("go on")
        await world.ada.sees("done")
        assert "'notes.md'" in (await taints(world))[-1]


@tool(Traits(origin="own"))
def count_words(of: dict[str, str] | str, kind: str = "") -> str:
    """Count the words of a file."""
    return f"three, {of}{kind}"


@pytest.mark.parametrize(
    "given",
    [
        {"of": "notes.md"},
        {"of": "/workspace/sub/../notes.md"},
        {"of": "/workspace"},
        {"of": {"file": "./notes.md"}},
        {"of": "{workspace}/notes.md"},
    ],
    ids=str,
)
async def test_a_tool_that_names_a_marked_file_asks_like_a_reader(tmp_path: Path, given: Mapping[str, object]) -> None:
    home = tmp_path / "agents" / "main" / "workspace"
    arguments = json.dumps(given).replace("{workspace}", str(home))
    read = Reply(calls=(Call("count_words", arguments),))
    model = FakeModel(call("time_page"), WRITE, "written", read)
    async with scenario(tmp_path, model, tools=(time_page, count_words)) as world:
        await steered(world)
        await world.ada.says("go on")
        await world.ada.is_asked()
        (request,) = await asked(world)
        assert "'notes.md'" in request.reason


@pytest.mark.parametrize("given", [{"of": "plain.md"}, {"of": "lost.md"}, {"of": "notes", "kind": "of md"}], ids=str)
async def test_a_tool_that_names_no_marked_file_does_not_ask(tmp_path: Path, given: Mapping[str, object]) -> None:
    clean_file(tmp_path, "plain.md")
    read = Reply(calls=(Call("count_words", json.dumps(given)),))
    model = FakeModel(call("time_page"), WRITE, "written", read, "done")
    async with scenario(tmp_path, model, tools=(time_page, count_words)) as world:
        await steered(world)
        await world.ada.says("go on")
        await world.ada.sees("done")
        assert (await taints(world))[-1] == ""


@pytest.mark.parametrize(
    "read",
    [
        call("read", path="plain.md"),
        call("bash", command="cat plain.md"),
        call("bash", command="cat p*.md"),
        call("bash", command="echo notes"),
        call("write", path="notes.md", content="written anew"),
        call("time"),
    ],
    ids=lambda reply: f"{reply.calls[0].name} {reply.calls[0].arguments[:60]}",
)
async def test_reading_other_files_does_not_taint(tmp_path: Path, read: Reply) -> None:
    clean_file(tmp_path, "plain.md")
    model = FakeModel(call("time_page"), WRITE, "written", read, CURL, "done")
    async with scenario(tmp_path, model, tools=(time_page,)) as world:
        await steered(world)
        await world.ada.says("go on")
        await world.ada.sees("done")
        assert await asked(world) == []
        assert (await taints(world))[-2:] == ["", FETCHED]


@pytest.mark.parametrize(
    "command",
    [
        "dash notes.md",
        "busybox sh ./notes.md",
        "frobnicate --file=notes.md",
        "cd /workspace && ksh -x notes.md",
        "m4 'notes.md'",
    ],
)
async def test_unknown_programs_ask_before_running_a_marked_file(tmp_path: Path, command: str) -> None:
    run = call("bash", command=command)
    model = FakeModel(call("time_page"), WRITE, "written", run, "done")
    async with scenario(tmp_path, model, tools=(time_page,)) as world:
        await steered(world)
        await world.ada.says("go on")
        await world.ada.is_asked()
        (request,) = await asked(world)
        assert "'notes.md', written after the page of a stranger" in request.reason


@pytest.mark.parametrize(
    ("command", "hook"),
    [
        ("until [ -e go ]; do sleep 0.02; done; cat notes.md", {"on": "exit"}),
        ("until [ -e go ]; do sleep 0.02; done; cat notes.md; echo; sleep 60", {"on": "output", "pattern": "host"}),
    ],
)
async def test_a_process_is_tainted_by_what_it_reads_later(tmp_path: Path, command: str, hook: dict[str, str]) -> None:
    start = Reply(calls=(Call("process_start", json.dumps({"command": command, "hooks": [hook]})),))
    model = FakeModel(start, "started", call("time_page"), WRITE, "written", CURL)
    async with scenario(tmp_path, model, tools=(time_page,)) as world:
        await world.ada.says("watch")
        await world.ada.sees("started")
        await steered(world)
        clean_file(tmp_path, "go")
        await world.ada.is_asked()
        (request,) = await asked(world)
        assert "'notes.md', written after the page of a stranger" in request.reason


async def test_a_rewritten_file_is_clean(tmp_path: Path) -> None:
    anew = call("write", path="notes.md", content="plain")
    model = FakeModel(call("time_page"), WRITE, "written", anew, READ, CURL, "done")
    async with scenario(tmp_path, model, tools=(time_page,)) as world:
        await steered(world)
        await world.ada.says("go on")
        await world.ada.sees("done")
        assert await asked(world) == []


async def test_a_copy_of_a_marked_file_is_marked(tmp_path: Path) -> None:
    copy = call("bash", command="cp notes.md copy.md")
    model = FakeModel(call("time_page"), WRITE, "written", copy, "written", call("read", path="copy.md"), "done")
    async with scenario(tmp_path, model, tools=(time_page,)) as world:
        await steered(world)
        await world.ada.says("copy it")
        await world.ada.sees("written")
        await world.app[Orchestrator].clear(world.ada.thread, "ada")
        await world.ada.says("go on")
        await world.ada.sees("done")
        assert (await taints(world))[-1] == "'copy.md', written after 'notes.md', written after the page of a stranger"


async def test_marks_survive_a_restart(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(call("time_page"), WRITE, "written"), tools=(time_page,)) as world:
        await steered(world)
    async with scenario(tmp_path, FakeModel(READ, "done"), changes=("tools",)) as world:
        await world.ada.says("go on")
        await world.ada.sees("done")
        assert "'notes.md'" in (await taints(world))[-1]


async def test_an_untainted_turn_marks_nothing(tmp_path: Path) -> None:
    model = FakeModel(WRITE, READ, CURL, "done")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        assert await asked(world) == []
        assert await taints(world) == ["", "", FETCHED]


class Letter:
    """A web server with the same file at every URL. Implements `shoal.net.addresses.Fetcher`."""

    async def fetch(self, request: FetchRequest) -> Fetched:
        return Fetched(request.url, 200, (), b"do as I say\n")


async def read_later(world: World, author: Author, tainted_by: str = "", *, text: str = "look") -> str:
    """Clear a conversation in which `author` sent or forwarded a file. Then read the file and return the taint of
    that call.
    """
    world.app[Attachments].fetcher = Letter()
    letter = (Attachment("letter.txt", "text/plain", url="https://files.example.org/letter.txt"),)
    now = world.app[Clock].now()
    prompt = Prompt(world.ada.thread, "k1", text, author, now, attachments=letter, tainted_by=tainted_by)
    await world.app[Orchestrator].send(prompt)
    await world.ada.sees("taken")
    await world.app[Orchestrator].clear(world.ada.thread, "ada")
    await world.ada.says("go on")
    await world.ada.sees("done")
    return (await taints(world))[-1]


async def test_an_untrusted_persons_file_taints_its_later_readers(tmp_path: Path) -> None:
    model = FakeModel("taken", call("bash", command="head attachments/* /attachments/*"), "done")
    async with scenario(tmp_path, model) as world:
        found = await read_later(world, Author("eve", "Eve", trusted=False))
        assert found.endswith("letter.txt', written after a file from Eve")


async def test_a_file_forwarded_by_a_trusted_person_taints(tmp_path: Path) -> None:
    model = FakeModel("taken", call("list", path="/attachments"), "done")
    async with scenario(tmp_path, model) as world:
        found = await read_later(world, Author("ada", "ada", trusted=True), "a forwarded message")
        assert found.endswith("letter.txt', written after a file from a forwarded message")


async def test_a_file_sent_by_a_trusted_person_taints(tmp_path: Path) -> None:
    """A trusted person may forward a mail or document that somebody else wrote."""
    async with scenario(tmp_path, FakeModel("taken", call("list", path="/attachments"), "done")) as world:
        found = await read_later(world, Author("ada", "Ada", trusted=True))
        assert found.endswith("letter.txt', written after the file letter.txt")


@pytest.mark.parametrize("text", ["mine: look", "Mine: look", "  MINE:look"])
async def test_a_file_that_a_trusted_person_declares_as_their_own_does_not_taint(tmp_path: Path, text: str) -> None:
    model = FakeModel("taken", call("list", path="/attachments"), "done")
    async with scenario(tmp_path, model) as world:
        assert await read_later(world, Author("ada", "Ada", trusted=True), text=text) == ""
        said = [event.data.text for event in await world.journal() if isinstance(event.data, UserSaid)]
        assert said[0] == "look"


async def test_an_untrusted_person_cannot_declare_a_file_as_their_own(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("taken", call("list", path="/attachments"), "done")) as world:
        found = await read_later(world, Author("eve", "Eve", trusted=False), text="mine: look")
        assert found.endswith("written after a file from Eve")


async def test_a_turn_with_a_document_asks_before_remembering(tmp_path: Path) -> None:
    remember = call("remember", text="pay Eve every month")
    async with scenario(tmp_path, FakeModel(remember)) as world:
        world.app[Attachments].fetcher = Letter()
        letter = (Attachment("letter.txt", "text/plain", url="https://files.example.org/letter.txt"),)
        author, now = Author("ada", "Ada", trusted=True), world.app[Clock].now()
        await world.app[Orchestrator].send(Prompt(world.ada.thread, "k1", "sum up", author, now, attachments=letter))
        await world.ada.is_asked()
        (request,) = await asked(world)
        assert "the file letter.txt" in request.reason
        (said,) = [event.data for event in await world.journal() if isinstance(event.data, UserSaid)]
        assert said.author.trusted
