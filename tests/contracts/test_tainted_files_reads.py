"""A command that reads a tainted file, in any spelling, returns a tainted result or no text from the file."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.known_tools import TRAITS

from shoal.kernel.home import Home
from shoal.kernel.ports import Command, Mount
from shoal.permissions.actions import shell_actions
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.tools.tainted_files import MarkedFiles

MARKED = "0fa3 hostile 9c1e"
FILES = {
    "notes.md": MARKED,
    "plain.md": "plain",
    "sub/other.md": "other",
    "list": "notes.md\n",
    "run.sh": "cat notes.md",
}

paths = st.sampled_from(
    [
        "notes.md",
        "./notes.md",
        "/workspace/notes.md",
        "~/notes.md",
        "$PWD/notes.md",
        "${PWD}/notes.md",
        "$HOME/notes.md",
        "{notes,plain}.md",
        "{plain,notes}.md",
        "n*.md",
        "?otes.md",
        "[n]otes.md",
        "*.md",
        'no"tes".md',
        "'notes.md'",
        "$'\\x6eotes.md'",
        "sub/../notes.md",
        "/proc/self/cwd/notes.md",
        "/proc/1/cwd/notes.md",
        "link",
        "hard",
        "plink/notes.md",
        "abslink",
        "$v.md",
        "${v}.md",
        "${w:-notes}.md",
        "$(echo notes.md)",
        "`echo notes.md`",
        "plain.md",
        "sub/other.md",
        "sub",
        ".",
        "/workspace",
        "/",
        "*",
        "s*/../n*",
        "..//workspace//notes.md",
        "$(<list)",
        "~+/notes.md",
    ]
)
commands = st.sampled_from(
    [
        "cat {}",
        "head -n 5 {}",
        "cat < {}",
        "cat <(cat {})",
        "tac {}",
        "grep -r . {}",
        "grep -h '' {}",
        "rg . {}",
        "nl {}",
        "while read l; do echo $l; done < {}",
        "v=notes; cat {}",
        "cd sub && cat ../{}",
        "cd sub; cat {}",
        "sed -n p {}",
        "awk '{{print}}' {}",
        "cp {} /tmp/x; cat /tmp/x",
        "ln {} h2; cat h2",
        "mv {} m2; cat m2",
        "tar cf - {} | strings",
        "python3 -c 'print(open(\"notes.md\").read())' {}",
        "bash run.sh {}",
        'for f in {}; do cat "$f"; done',
        "ls {}",
        "echo {} | xargs cat",
        "find {} -type f -exec cat {{}} +",
        "diff {} plain.md",
        "sort {}",
        "uniq {}",
        "wc {}",
        "cat {} | tee copy.md",
        "exec 3<{}; cat <&3",
        "cat list {}",
        "xargs cat < list; : {}",
        "eval cat {}",
        "read l < {}; echo $l",
        "echo $(<{})",
        "mapfile -t a < {}; echo ${{a[@]}}",
        "printf '%s' \"$(cat {})\"",
        "timeout 5 cat {}",
        "git grep --no-index . {}",
        "git diff --no-index plain.md {}",
        "dd if={} status=none",
        "base64 {} | base64 -d",
        "paste {} {}",
        "column -t {}",
        "od -c {}",
        "cat {} &",
        "(cat {})",
        "f() {{ cat {}; }}; f",
        'set -- {}; cat "$1"',
        "[[ -f {} ]] && cat {}",
        ". ./run.sh; : {}",
    ]
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(commands, paths)
@example("cat {}", "abslink")
@example("cat {}", "/proc/self/cwd/notes.md")
@example("cat {}", "plink/notes.md")
@example("ln {} h2; cat h2", "notes.md")
def test_every_spelling_taints_or_shows_nothing(command: str, path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_tried(command.format(*[path] * command.count("{}")), Path(folder)))


async def _tried(text: str, root: Path) -> None:
    workspace = root / "workspace"
    (workspace / "sub").mkdir(parents=True)
    for name, content in FILES.items():
        (workspace / name).write_text(content)
    (workspace / "link").symlink_to("notes.md")
    (workspace / "plink").symlink_to(".")
    (workspace / "abslink").symlink_to("/workspace/notes.md")
    mounts = (Mount(workspace, "/workspace", writable=True),)
    store = Store(SqliteDriver(empty_database(root / "shoal.db"), synchronous="OFF"), ManualClock())
    marked = MarkedFiles(store.settings, Home(root))
    await marked.note(workspace, [workspace / "notes.md"], "a page")
    (workspace / "hard").hardlink_to(workspace / "notes.md")
    await marked.note(workspace, [workspace / "notes.md"], "a page")
    sandbox = BubblewrapSandbox()
    actions = shell_actions("bash", text, cwd=workspace, mounts=mounts, isolated=True)
    source = await marked.source_of(actions, mounts, TRAITS, mapped=True)
    result = await sandbox.run(Command(text, workspace, mounts, timeout_seconds=20))
    await sandbox.close()
    shown = (result.stdout + result.stderr).decode(errors="replace")
    assert source or not any(word in shown.replace("\\", "") for word in MARKED.split()), text
