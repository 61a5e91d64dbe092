"""The git tools, with the real git: what they do, what they say they do, and what they never run."""

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from shoal.domain.errors import ToolError
from shoal.domain.ports import CommandResult, Invocation, Sandbox, ToolContext, ToolOutput
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.host import HostSandbox
from shoal.testing.contracts.tool import FakeSandbox, tool_context
from shoal.tools.builtin.git import git_tools

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

TOOLS = {tool.name: tool for tool in git_tools()}


class Repository:
    """A workspace of an agent, and the git tools in it."""

    def __init__(self, folder: Path, sandbox: Sandbox | None = None) -> None:
        self.context: ToolContext = tool_context(folder, sandbox or HostSandbox())
        self.root = self.context.agent.workspace

    def prepare(self, name: str, /, **arguments: object) -> Invocation:
        return TOOLS[name].prepare(json.dumps(arguments), self.context)

    async def run(self, name: str, /, **arguments: object) -> ToolOutput:
        return await self.prepare(name, **arguments).run()

    async def done(self, name: str, /, **arguments: object) -> str:
        output = await self.run(name, **arguments)
        assert not output.is_error, output.text
        return output.text

    def git(self, *words: str) -> str:
        """Git as a person would run it there."""
        found = subprocess.run(["git", *words], cwd=self.root, check=True, capture_output=True, text=True)
        return found.stdout

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)


@pytest.fixture
async def repository(tmp_path: Path) -> Repository:
    found = Repository(tmp_path)
    await found.done("git_init")
    found.write("notes.txt", "one\n")
    await found.done("git_commit", message="Begin")
    return found


async def test_a_commit_is_made_in_the_agents_name(repository: Repository) -> None:
    assert repository.git("log", "--format=%an <%ae> %s").strip() == "main <main@shoal.invalid> Begin"


async def test_status_diff_and_log_show_what_has_changed(repository: Repository) -> None:
    repository.write("notes.txt", "two\n")
    repository.write("new.txt", "x\n")
    status = await repository.done("git_status")
    assert " M notes.txt" in status
    assert "?? new.txt" in status
    assert "-one\n+two" in await repository.done("git_diff")
    assert "two" not in await repository.done("git_diff", staged=True)
    assert "two" not in await repository.done("git_diff", files=["new.txt"])
    log = await repository.done("git_log", count=1, patch=True)
    assert "Begin" in log
    assert "+one" in log


async def test_a_commit_of_named_files_leaves_the_others(repository: Repository) -> None:
    repository.write("a.txt", "a")
    repository.write("b.txt", "b")
    await repository.done("git_commit", message="Add a", files=["a.txt"])
    assert repository.git("show", "--name-only", "--format=").split() == ["a.txt"]
    assert "?? b.txt" in await repository.done("git_status")


async def test_branches_are_made_switched_listed_and_deleted(repository: Repository) -> None:
    await repository.done("git_branch", do="create", name="topic/one")
    repository.write("topic.txt", "t")
    await repository.done("git_commit", message="Topic")
    await repository.done("git_branch", do="switch", name="main")
    assert not (repository.root / "topic.txt").exists()
    assert "topic/one" in await repository.done("git_branch")
    kept = await repository.run("git_branch", do="delete", name="topic/one")
    assert kept.is_error
    assert "not fully merged" in kept.text


async def test_a_push_reaches_the_remote_and_nothing_else_does(repository: Repository) -> None:
    repository.git("init", "--bare", "-q", "-b", "main", "remote.git")
    repository.git("remote", "add", "origin", "./remote.git")
    repository.git("tag", "v1")
    await repository.done("git_push", branch="main")
    assert repository.git("-C", "remote.git", "for-each-ref", "--format=%(refname)").split() == ["refs/heads/main"]
    assert repository.git("-C", "remote.git", "log", "--format=%s", "main").strip() == "Begin"


async def test_a_push_is_never_forced(repository: Repository) -> None:
    repository.git("init", "--bare", "-q", "-b", "main", "remote.git")
    repository.git("remote", "add", "origin", "./remote.git")
    await repository.done("git_push", branch="main")
    repository.git("-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "--amend", "-m", "Other")
    refused = await repository.run("git_push", branch="main")
    assert refused.is_error
    assert "rejected" in refused.text


async def test_nothing_of_a_repositorys_configuration_runs(repository: Repository, tmp_path: Path) -> None:
    mark = tmp_path / "it-ran"
    evil = tmp_path / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch {mark}\n[ -t 0 ] || cat\n")
    evil.chmod(0o755)
    hooks = repository.root / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("pre-commit", "commit-msg", "post-commit", "post-checkout", "pre-push", "post-index-change"):
        shutil.copy(evil, hooks / hook)
    repository.git("init", "--bare", "-q", "-b", "main", "remote.git")
    (repository.root / "remote.git" / "hooks").mkdir(exist_ok=True)
    shutil.copy(evil, repository.root / "remote.git" / "hooks" / "pre-receive")
    repository.git("remote", "add", "origin", "./remote.git")
    for key in (
        "core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "core.hooksPath.x", "diff.external",
        "diff.odd.textconv", "diff.odd.command", "filter.odd.clean", "filter.odd.smudge", "filter.odd.process",
        "gpg.program", "credential.helper", "pager.log", "pager.diff", "pager.branch", "remote.origin.receivepack",
        "sequence.editor", "core.alternateRefsCommand",
    ):  # fmt: skip
        repository.git("config", key, str(evil))
    repository.git("config", "commit.gpgSign", "true")
    repository.git("config", "filter.odd.required", "true")
    repository.git("config", "core.hooksPath", str(hooks))
    repository.write(".gitattributes", "* filter=odd diff=odd\n")
    repository.write("notes.txt", "three\n")
    await repository.done("git_status")
    await repository.done("git_diff")
    await repository.done("git_commit", message="Change", files=[".gitattributes", "notes.txt"])
    await repository.done("git_log", patch=True)
    await repository.done("git_branch", do="create", name="topic")
    await repository.done("git_branch", do="switch", name="main")
    await repository.done("git_push", branch="main")
    assert not mark.exists()


def test_actions_say_what_will_happen(tmp_path: Path) -> None:
    repository = Repository(tmp_path, FakeSandbox())
    (repository.root / "sub").mkdir()

    def action(name: str, /, **arguments: object) -> str:
        (found,) = repository.prepare(name, **arguments).actions
        return found.text

    assert action("git_init", path="sub") == "tool:git_init:/workspace/sub"
    assert action("git_status") == "tool:git_status:/workspace"
    assert action("git_diff", staged=True, revision="HEAD~1") == "tool:git_diff:/workspace --cached HEAD~1"
    assert action("git_log", count=3, files=["a b"]) == "tool:git_log:/workspace -3 --stat a b"
    assert action("git_commit", message="Say it\n\nwhy") == "tool:git_commit:Say it\n\nwhy"
    assert action("git_branch", do="create", name="x") == "tool:git_branch:create x"
    assert action("git_push", branch="main") == "tool:git_push:origin main"


def test_a_push_shows_where_to_and_an_approval_ends_when_that_changes(tmp_path: Path) -> None:
    repository = Repository(tmp_path, FakeSandbox())
    repository.git("init", "-q")
    repository.git("remote", "add", "origin", "https://ada:geheim@git.example/ada/boat.git")
    before = repository.prepare("git_push", branch="main")
    assert "https://git.example/ada/boat.git" in before.shown
    assert "geheim" not in before.shown
    assert before.actions[0].also == ("tool:git_push:https://git.example/ada/boat.git main",)
    repository.git("remote", "set-url", "origin", "https://elsewhere.example/boat.git")
    assert repository.prepare("git_push", branch="main").canonical != before.canonical


def test_an_address_that_is_rewritten_gives_no_name_to_a_rule(tmp_path: Path) -> None:
    repository = Repository(tmp_path, FakeSandbox())
    repository.git("init", "-q")
    repository.git("remote", "add", "origin", "https://git.example/boat.git")
    repository.git("config", "url.https://elsewhere.example/.pushInsteadOf", "https://git.example/")
    call = repository.prepare("git_push", branch="main")
    assert call.actions[0].also == ()
    assert "could not be read" in call.shown


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("git_diff", {"revision": "--output=/workspace/x"}),
        ("git_diff", {"revision": "-O/etc/passwd"}),
        ("git_log", {"revision": "a b"}),
        ("git_log", {"files": ["../../etc/passwd"]}),
        ("git_commit", {"message": "x", "files": ["/etc/passwd"]}),
        ("git_commit", {"message": " \x00 "}),
        ("git_branch", {"do": "create", "name": "--help"}),
        ("git_branch", {"do": "create"}),
        ("git_push", {"branch": "main:other"}),
        ("git_push", {"branch": "+main"}),
        ("git_push", {"branch": "main", "remote": "ext::sh -c touch"}),
        ("git_push", {"branch": "main", "remote": "--receive-pack=x"}),
        ("git_status", {"path": "/etc"}),
        ("git_status", {"path": "/skills"}),
        ("git_init", {"path": "../../.."}),
    ],
)
def test_what_is_no_plain_argument_is_refused(tmp_path: Path, name: str, arguments: dict[str, object]) -> None:
    with pytest.raises(ToolError):
        Repository(tmp_path, FakeSandbox()).prepare(name, **arguments)


def test_the_whole_disk_is_no_workspace_even_for_an_unrestricted_agent(tmp_path: Path) -> None:
    repository = Repository(tmp_path, FakeSandbox())
    agent = msgspec.structs.replace(repository.context.agent, restrict_to_workspace=False)
    repository.context = msgspec.structs.replace(repository.context, agent=agent)
    with pytest.raises(ToolError, match="not in the workspace"):
        repository.prepare("git_status", path="/usr")


async def test_a_repository_above_the_workspace_is_not_found(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.git("init", "-q", "..")
    output = await repository.run("git_status")
    assert output.is_error
    assert "not a git repository" in output.text


async def test_without_a_network_a_push_says_who_can_open_it(tmp_path: Path) -> None:
    failed = CommandResult(b"", b"fatal: unable to access 'https://git.example/': Could not resolve host", 128)
    repository = Repository(tmp_path, FakeSandbox(failed))
    repository.git("init", "-q")
    repository.git("remote", "add", "origin", "https://git.example/boat.git")
    output = await repository.run("git_push", branch="main")
    assert output.is_error
    assert "[sandbox]" in output.text


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_all_of_it_works_in_a_sandbox_without_a_network(tmp_path: Path) -> None:
    sandbox = BubblewrapSandbox()
    repository = Repository(tmp_path, sandbox)
    await repository.done("git_init")
    repository.write("a.txt", "a\n")
    await repository.done("git_commit", message="Begin")
    repository.git("init", "--bare", "-q", "-b", "main", "remote.git")
    repository.git("remote", "add", "origin", "/workspace/remote.git")
    repository.git("remote", "add", "far", "https://git.example/boat.git")
    await repository.done("git_push", branch="main")
    assert "Begin" in repository.git("-C", "remote.git", "log", "main")
    far = await repository.run("git_push", branch="main", remote="far")
    assert far.is_error
    assert "[sandbox]" in far.text
    await sandbox.close()


async def test_output_is_bounded(tmp_path: Path) -> None:
    repository = Repository(tmp_path, FakeSandbox(CommandResult(b"x" * 10, b"", 0, stdout_cut=True)))
    assert "went on" in (await repository.run("git_log")).text
