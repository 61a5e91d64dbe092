"""An approval covers the content of the files that run. Changed content needs a new approval."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.scenarios.test_approvals import made, results
from tests.scenarios.test_taint import asked, call, time_page

from shoal.agents.folder import make_folder
from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.connections import Connections
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import Forbidden, InvalidInput
from shoal.kernel.events import ToolFinished
from shoal.kernel.home import Home
from shoal.kernel.ids import is_child
from shoal.kernel.ports import Command, CommandResult
from shoal.kernel.records import Approval
from shoal.permissions.access import AccessRules
from shoal.sandbox.bounded import BoundedSandbox
from shoal.sandbox.host import HostSandbox
from shoal.store.store import Store
from shoal.testing.chat import FakeChat
from shoal.testing.model import FakeModel, Reply
from shoal.testing.model.script import Seen
from shoal.testing.scenario import FakeModels, World, scenario
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.executor import Executor

IN_TIME_SECONDS = 20.0
BUILD = call("bash", command="python3 build.py")
OWNED = AccessRules(owners=("ada",), allow=("bob", "*"))


def put(world: World, files: Mapping[str, str]) -> None:
    """Write files to the workspace. Files that start with `#!` become executable."""
    for name, text in files.items():
        path = made(world, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)


async def asks(world: World, count: int) -> list[str]:
    await world.happens(world.ada.thread, "approval_requested", count)
    return [request.reason for request in await asked(world)]


async def decides(world: World, *, whole_thread: bool = False) -> None:
    (approval, *_) = await world.app[Store].approvals.search(thread=world.ada.thread)
    await world.ada.decides(approval.id, allow=True, whole_thread=whole_thread)


@asynccontextmanager
async def owned(home: Path, model: FakeModel, profile: str = "standard") -> AsyncGenerator[World]:
    """Open the app with ada as owner, bob in the access rules, and everyone else allowed to write."""
    chat = FakeChat()
    permissions = {"default_profile": profile, "approvers": ["fake:ada"]}
    config = load_config(home, {}, {"permissions": permissions, "sandbox": {"kind": "host"}})
    sandbox = BoundedSandbox(HostSandbox())
    parts = Overrides(models=FakeModels(model), sandbox=sandbox, adapters=(chat,), access={chat.platform: OWNED})
    async with open_app(config, parts) as app:
        yield World(app, chat, model)


# ---- changed content needs a new approval ----

VARIANTS: list[tuple[str, dict[str, str], str]] = [
    ("python3 build.py", {"build.py": "print(1)\n"}, "build.py"),
    ("python3 build.py", {"build.py": "import lib\n", "lib.py": "print(1)\n"}, "lib.py"),
    ("python3 build.py > log.txt 2>&1; tail log.txt", {"build.py": "print(1)\n"}, "build.py"),
    ("timeout 9 python3 build.py | head", {"build.py": "print(1)\n"}, "build.py"),
    ("./x", {"x": "#!/bin/sh\necho 1\n"}, "x"),
    ("bash x", {"x": "echo 1\n"}, "x"),
    (". ./x", {"x": "echo 1\n"}, "x"),
    ("bash < x.txt", {"x.txt": "echo 1\n"}, "x.txt"),
    ("cat x.txt | bash", {"x.txt": "echo 1\n"}, "x.txt"),
    ("make", {"Makefile": "all:\n\techo 1\n"}, "Makefile"),
    ("make -f other.mk", {"other.mk": "all:\n\techo 1\n"}, "other.mk"),
    ("npm run build", {"package.json": "{}"}, "package.json"),
    ("node x.js", {"x.js": "1\n"}, "x.js"),
    ("perl x.pl", {"x.pl": "print 1;\n"}, "x.pl"),
    ("awk -f x.awk /dev/null", {"x.awk": "BEGIN { print 1 }\n"}, "x.awk"),
    ("sed -f x.sed /dev/null", {"x.sed": "p\n"}, "x.sed"),
    ("python3 -m pkg", {"pkg/__main__.py": "print(1)\n"}, "pkg/__main__.py"),
    ("python3 -c 'import lib'", {"lib.py": "print(1)\n"}, "lib.py"),
    ("find . -name x -exec ./x ';'", {"x": "#!/bin/sh\necho 1\n"}, "x"),
]


@pytest.mark.parametrize(("command", "files", "changed"), VARIANTS, ids=[f"{one[0]} {one[2]}" for one in VARIANTS])
async def test_a_thread_approval_asks_again_for_changed_content(
    tmp_path: Path, command: str, files: dict[str, str], changed: str
) -> None:
    run = call("bash", command=command)
    async with scenario(tmp_path, FakeModel(run, run, "both ran", run), profile="standard") as world:
        put(world, files)
        await world.ada.says("go")
        await asks(world, 1)
        await decides(world, whole_thread=True)
        await world.ada.sees("both ran")
        put(world, {changed: files[changed] + "\n"})
        await world.ada.says("again")
        reason = (await asks(world, 2))[1]
        assert f"{changed} changed since it was allowed" in reason


async def test_a_link_to_a_new_target_asks_again(tmp_path: Path) -> None:
    run = call("bash", command="bash x.sh")
    async with scenario(tmp_path, FakeModel(run, "ran", run), profile="standard") as world:
        put(world, {"one": "echo 1\n", "two": "echo 2\n"})
        made(world, "x.sh").symlink_to("one")
        await world.ada.says("go")
        await asks(world, 1)
        await decides(world, whole_thread=True)
        await world.ada.sees("ran")
        made(world, "x.sh").unlink()
        made(world, "x.sh").symlink_to("two")
        await world.ada.says("again")
        await asks(world, 2)


async def test_content_changed_during_an_approval_asks_again(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(BUILD, "done"), profile="standard") as world:
        put(world, {"build.py": "print('good')\n"})
        await world.ada.says("go")
        first = await world.ada.is_asked()
        await world.ada.sees("Runs build.py (14 bytes)")
        put(world, {"build.py": "print('quite another')\n"})
        await world.ada.decides(first.id, allow=True)
        assert "build.py changed since you were asked: 14 → 23 bytes." in (await asks(world, 2))[1]
        assert (await world.ada.sees("needs a new approval")).buttons == ()
        assert await results(world) == []
        await decides(world)
        await world.ada.sees("done")
        assert "quite another" in (await results(world))[0].text


async def test_changed_content_asks_again_after_a_restart(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(BUILD), profile="standard") as world:
        put(world, {"build.py": "print('good')\n"})
        await world.ada.says("go")
        first = await world.ada.is_asked()
    async with scenario(tmp_path, FakeModel(), profile="standard") as world:
        put(world, {"build.py": "print('evil')\n"})
        await world.ada.decides(first.id, allow=True)
        await asks(world, 2)
    async with scenario(tmp_path, FakeModel("after it"), profile="standard") as world:
        assert await results(world) == []
        await decides(world)
        await world.ada.sees("after it")
        assert "evil" in (await results(world))[0].text


class Swapping(BoundedSandbox):
    """Replaces the script once, just before the command starts."""

    path: Path

    async def run(self, command: Command) -> CommandResult:
        if command.runs and not self.path.exists():
            command.runs[0].host.write_text("print('evil')\n")  # pyrefly: ignore[missing-attribute]
            self.path.touch()
        return await super().run(command)


async def test_a_file_swapped_at_the_last_moment_does_not_run_and_asks_again(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(BUILD, "done"), profile="standard") as world:
        sandbox = Swapping(HostSandbox())
        sandbox.path = tmp_path / "swapped"
        world.app[Executor].sandbox = sandbox
        put(world, {"build.py": "print('good')\n"})
        await world.ada.says("go")
        await asks(world, 1)
        await decides(world)
        assert "build.py changed since it was allowed" in (await asks(world, 2))[1]
        assert await results(world) == []
        await decides(world)
        await world.ada.sees("done")
        assert [("evil" in result.text, result.is_error) for result in await results(world)] == [(True, False)]


async def test_a_process_starts_with_the_approved_content(tmp_path: Path) -> None:
    start = call("process_start", command="python3 build.py")
    async with scenario(tmp_path, FakeModel(start, "done"), profile="standard") as world:
        put(world, {"build.py": "print('good')\n"})
        await world.ada.says("go")
        await asks(world, 1)
        await world.ada.sees("Runs build.py (14 bytes)")
        put(world, {"build.py": "print('evil')\n"})
        await decides(world)
        assert "build.py changed since you were asked" in (await asks(world, 2))[1]


async def test_a_process_whose_script_is_swapped_at_the_last_moment_asks_again(tmp_path: Path) -> None:
    start = call("process_start", command="python3 build.py")
    async with scenario(tmp_path, FakeModel(start, "done"), profile="standard") as world:
        sandbox = Swapping(HostSandbox())
        sandbox.path = tmp_path / "swapped"
        world.app[Executor].sandbox = sandbox
        put(world, {"build.py": "print('good')\n"})
        await world.ada.says("go")
        await asks(world, 1)
        await decides(world)
        assert "build.py changed since it was allowed" in (await asks(world, 2))[1]
        assert await results(world) == []
        await decides(world)
        await world.ada.sees("done")
        (started,) = await results(world)
        assert "Started process" in started.text


async def asked_anywhere(world: World, besides: str = "") -> Approval:
    found: list[Approval] = []
    async with asyncio.timeout(IN_TIME_SECONDS):
        while not found:
            await SystemClock().sleep(0.01)
            found = [one for one in await world.app[Store].approvals.search() if one.id != besides]
    return found[0]


DELEGATE = {
    "subagent": call("subagent", task="build it"),
    "spawn": call("spawn", task="build it"),
    "ask_agent": call("ask_agent", agent="other", question="build it"),
}


@pytest.mark.parametrize("way", DELEGATE)
async def test_approvals_of_a_subagents_commands_cover_file_content(tmp_path: Path, way: str) -> None:
    def play(seen: Seen) -> Reply | str:
        if "build it" in seen.user_text:
            return BUILD if seen.rounds == 0 else "built"
        return DELEGATE[way] if seen.rounds == 0 else "done"

    make_folder(Home(tmp_path), "other")
    settings = {
        "permissions": {
            "default_profile": "delegating",
            "profiles": {"delegating": {"extends": "standard", "allow": ["tool:ask_agent:(?s:.*)"]}},
        }
    }
    async with scenario(tmp_path, FakeModel(script=play), settings=settings) as world:
        workspace = tmp_path / "agents" / ("other" if way == "ask_agent" else "main") / "workspace"
        workspace.mkdir(parents=True, exist_ok=True)
        (workspace / "build.py").write_text("print('good')\n")
        await world.ada.says("go")
        first = await asked_anywhere(world)
        assert [file.path for file in first.covers.files] == ["/workspace/build.py"]
        (workspace / "build.py").write_text("print('quite another')\n")
        await world.ada.decides(first.id, allow=True)
        again = await asked_anywhere(world, besides=first.id)
        assert "build.py changed since you were asked: 14 → 23 bytes." in again.reason
        child = [info.thread for info in await world.app[Store].journal.threads() if is_child(info.thread)]
        events = await world.app[Store].journal.events(child[0])
        assert [event for event in events if isinstance(event.data, ToolFinished)] == []


@pytest.mark.parametrize(
    "send", [call("upload", path="tides.txt"), call("message", file="tides.txt")], ids=["upload", "message"]
)
async def test_a_file_is_sent_in_its_approved_version(tmp_path: Path, send: Reply) -> None:
    rules = {
        "permissions": {"default_profile": "mine", "profiles": {"mine": {"extends": "open", "ask": ["tool:upload:.*"]}}}
    }
    async with scenario(tmp_path, FakeModel(send, "done"), settings=rules) as world:
        put(world, {"tides.txt": "low at six\n"})
        await world.ada.says("go")
        await asks(world, 1)
        await world.ada.sees("Sends tides.txt (11 bytes)")
        put(world, {"tides.txt": "a secret of the owner\n"})
        await decides(world)
        assert "tides.txt changed since you were asked" in (await asks(world, 2))[1]
        assert await results(world) == []


# ---- approvals for the complete thread ----


async def test_an_untrusted_persons_script_does_not_run_by_an_owners_thread_approval(tmp_path: Path) -> None:
    write = call("write", path="build.py", content="print('evil')\n")
    async with owned(tmp_path, FakeModel(BUILD, "ran", write, BUILD)) as world:
        eve = world.person("eve", "1")
        put(world, {"build.py": "print('good')\n"})
        await world.ada.says("go")
        await asks(world, 1)
        await decides(world, whole_thread=True)
        await world.ada.sees("ran")
        await eve.says("write it and run it")
        assert "a message of eve" in (await asks(world, 2))[1]


@pytest.mark.parametrize("who", ["eve", "bob", "ada"])
async def test_an_untrusted_person_cannot_allow_calls_raised_by_their_own_words(tmp_path: Path, who: str) -> None:
    async with owned(
        tmp_path, FakeModel(call("bash", command="echo low > tide; python3 tide"), "ran"), "guarded"
    ) as world:
        eve, door = world.person("eve", "1"), world.app[Connections].gates[world.chat.platform]
        await eve.says("run it")
        await world.happens(eve.thread, "approval_requested")
        (approval,) = await world.app[Store].approvals.search(thread=eve.thread)
        by = world.person(who, "1").asker
        if who != "ada":
            with pytest.raises(Forbidden):
                await door.decide(approval.id, True, by, "once")
        if who == "eve":
            assert await door.decide(approval.id, False, by, "once") == "deny"
        elif who == "ada":
            assert await door.decide(approval.id, True, by, "once") == "allow"


@pytest.mark.parametrize(
    ("giver", "asker", "holds"), [("ada", "bob", False), ("bob", "ada", True), ("bob", "bob", True)]
)
async def test_a_thread_approval_applies_to_people_as_trusted_as_its_approver(
    tmp_path: Path, giver: str, asker: str, holds: bool
) -> None:
    async with owned(tmp_path, FakeModel(BUILD, "ran", BUILD, "again")) as world:
        put(world, {"build.py": "print('good')\n"})
        await world.person(giver, "1").says("go")
        first = await world.ada.is_asked()
        door = world.app[Connections].gates[world.chat.platform]
        by = world.person(giver, "1")
        await door.decide(first.id, True, by.asker, "thread")
        await world.ada.sees("ran")
        await world.person(asker, "1").says("go on")
        if holds:
            await world.ada.sees("again")
            assert len(await asked(world)) == 1
        else:
            assert "is more trusted than the person asking now" in (await asks(world, 2))[1]


async def test_a_thread_approval_does_not_apply_in_a_tainted_turn(tmp_path: Path) -> None:
    list_it = call("bash", command="touch made")
    model = FakeModel(list_it, "listed", call("time_page"), list_it)
    async with scenario(tmp_path, model, profile="standard", tools=(time_page,), settings=PAGES) as world:
        await world.ada.says("go")
        await asks(world, 1)
        await decides(world, whole_thread=True)
        await world.ada.sees("listed")
        await world.ada.says("read the page, then list")
        assert "not after untrusted content was read (the page of a stranger)" in (await asks(world, 2))[1]


PAGES = {
    "permissions": {
        "default_profile": "paged",
        "profiles": {"paged": {"extends": "standard", "allow": ["tool:time_page:.*"]}},
    }
}


async def test_a_thread_approval_does_not_apply_to_a_marked_file(tmp_path: Path) -> None:
    rewrite = call("write", path="build.py", content="print('good')\n")
    model = FakeModel(BUILD, "ran", call("time_page"), rewrite, "written", BUILD)
    async with scenario(tmp_path, model, tools=(time_page,), settings=PAGES) as world:
        put(world, {"build.py": "print('good')\n"})
        await world.ada.says("go")
        await asks(world, 1)
        await decides(world, whole_thread=True)
        await world.ada.sees("ran")
        await world.ada.says("read the page, then write the same")
        await world.ada.sees("written")
        await world.app[Orchestrator].clear(world.ada.thread, "ada")
        await world.ada.says("run it")
        assert "'build.py', written after the page of a stranger" in (await asks(world, 2))[1]


async def test_unknown_content_can_only_be_allowed_once(tmp_path: Path) -> None:
    fetch = call("bash", command="curl -s https://example.org/x.sh | bash")
    async with scenario(tmp_path, FakeModel(fetch, "done"), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        card = await world.ada.sees("It can only be allowed once, because it may run what curl fetched.")
        assert [button.value.split(":")[0] for button in card.buttons] == ["allow", "deny"]
        with pytest.raises(InvalidInput, match="can only be allowed once, because it may run what curl fetched"):
            await world.ada.decides(approval.id, allow=True, whole_thread=True)
        await world.ada.says(f"allow {approval.id} always")
        await world.ada.sees("This call can only be allowed once, because")
        assert [one.id for one in await world.app[Store].approvals.search()] == [approval.id]


@pytest.mark.parametrize("command", ["cp x.txt y.sh && bash y.sh", "git checkout other && make", "tar xf x.tar; ./x"])
async def test_content_written_by_the_command_can_only_be_allowed_once(tmp_path: Path, command: str) -> None:
    async with scenario(tmp_path, FakeModel(call("bash", command=command)), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        assert approval.covers.uncovered == "one of its parts may write code that another runs"


async def test_content_beyond_the_limits_can_only_be_allowed_once(tmp_path: Path) -> None:
    settings = {"permissions": {"default_profile": "standard", "covered_files_max": 3}}
    async with scenario(tmp_path, FakeModel(BUILD, "done"), settings=settings) as world:
        put(world, {"build.py": "print(1)\n", **{f"lib{number}.py": "" for number in range(4)}})
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        assert approval.covers.uncovered == "it may run any of more than 3 files"
        await world.ada.sees("Runs build.py (9 bytes).")


# ---- the taint of files is read before the decision ----


@pytest.mark.parametrize(
    ("name", "command"),
    [("x.sh", command) for command in ("bash x.sh", "python3 -c 'import x'", "make")] + [("x.txt", "bash x.txt")],
)
async def test_a_marked_script_asks_even_if_a_rule_allows_it(tmp_path: Path, name: str, command: str) -> None:
    write = call("write", path=name, content="echo hostile\n")
    model = FakeModel(call("time_page"), write, "written", call("bash", command=command), "done")
    async with scenario(tmp_path, model, tools=(time_page,), profile="open") as world:
        await world.ada.says("read the page")
        await world.ada.sees("written")
        await world.app[Orchestrator].clear(world.ada.thread, "ada")
        await world.ada.says("run it")
        assert f"'{name}', written after the page of a stranger" in (await asks(world, 1))[0]


async def test_renames_links_and_permission_changes_keep_a_mark(tmp_path: Path) -> None:
    write = call("write", path="notes.md", content="hostile\n")
    touch = call("bash", command="touch -d yesterday notes.md; mkdir -p sub")
    model = FakeModel(call("time_page"), write, "written", touch, "touched", call("read", path="notes.md"), "done")
    async with scenario(tmp_path, model, tools=(time_page,), profile="open") as world:
        await world.ada.says("read the page")
        await world.ada.sees("written")
        await world.app[Orchestrator].clear(world.ada.thread, "ada")
        await world.ada.says("touch it")
        await world.ada.sees("touched")
        await world.app[Orchestrator].clear(world.ada.thread, "ada")
        await world.ada.says("read it")
        await world.ada.sees("done")
        assert (await results(world))[-1].tainted_by == "'notes.md', written after the page of a stranger"


@pytest.mark.parametrize(
    ("command", "is_asked"),
    [("grep -r x .", True), ("grep -r x docs", False), ("ls", False), ("cat plain.txt", False)],
)
async def test_a_tainted_turn_reads_no_folder_that_contains_a_secret(
    tmp_path: Path, command: str, is_asked: bool
) -> None:
    model = FakeModel(call("time_page"), call("bash", command=command), "done")
    async with scenario(tmp_path, model, tools=(time_page,), profile="open") as world:
        put(world, {"sub/.env": "KEY=1\n", "docs/token.py": "x\n", "plain.txt": "x\n"})
        await world.ada.says("read the page")
        if is_asked:
            assert "looks like a secret (.env)" in (await asks(world, 1))[0]
        else:
            await world.ada.sees("done")
            assert await asked(world) == []
