"""The files that a command can read or run, as sandbox paths."""

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from shoal.kernel.permissions import Action
from shoal.kernel.ports import Mount
from shoal.permissions.actions import shell_actions
from shoal.tools.jail import resolve

FILES = ("a.md", "b.md", "f.md", "x.md", "src/a.py", "src/b.py", "src/sub/c.py", "-e1e id", ".env", "a b/f.md")


@pytest.fixture
def workspace() -> Generator[Path]:
    """Create the workspace in /var/tmp, because the usual temporary folder may be in `/dev/shm` and Shoal cannot
    resolve paths below `/dev`.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-reads-", dir="/var/tmp") as folder:
        found = Path(folder, "ws")
        for name in FILES:
            (found / name).parent.mkdir(parents=True, exist_ok=True)
            (found / name).write_text(name)
        yield found


def actions(command: str, workspace: Path) -> list[Action]:
    mounts = (Mount(workspace, "/workspace", writable=True), Mount(workspace.parent / "skills", "/skills"))
    return [action for action in shell_actions("bash", command, cwd=workspace, mounts=mounts) if not action.whole]


def reads(command: str, workspace: Path) -> set[str] | None:
    found: set[str] = set()
    for action in actions(command, workspace):
        if action.reads is None:
            return None
        found |= {name.removeprefix("/workspace/") for name in action.reads}
    return found


SPELLINGS = [
    "cat f.md", "cat ./f.md", "cat ~/f.md", "cat $HOME/f.md", "cat ${HOME}/f.md", 'cat "$PWD/f.md"', "cat ${PWD}/f.md",
    "cat /workspace/f.md", "cat src/../f.md", "cat 'f'.md", "cat f.m\\d", "cat $'f.\\x6dd'", "cat {f,f}.md",
    "v=f; cat $v.md", 'v=f; cat "${v}.md"', "for v in f; do cat $v.md; done", "cat < f.md", "cat f*.md", "cat [f].md",
    "cd src && cat ../f.md", "(cd src && cat ../f.md)", "head -n 5 f.md", "head -5 -- f.md", "grep -f f.md </dev/null",
    "timeout 5 cat f.md", "bash -c 'cat f.md'", "time cat f.md", "diff f.md f.md", "cat <(cat f.md)", "tail -n +2 f.md",
    "find f.md -type f -exec cat {} +", "sort -o /workspace/f.md f.md || true; cat f.md", "echo $(cat f.md)",
]  # fmt: skip


@pytest.mark.parametrize("command", SPELLINGS)
def test_every_spelling_of_a_file_names_it(command: str, workspace: Path) -> None:
    found = reads(command, workspace)
    assert found is None or "f.md" in found
    assert found is None or found <= {"f.md", ".md", "a b/f.md", "src"} | {
        name for name in found if name.startswith("/")
    }


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("echo x", set()),
        ("cat {a,b}.md", {"a.md", "b.md"}),
        ("cat *.md", {"a.md", "b.md", "f.md", "x.md"}),
        ("cat src/*.py", {"src/a.py", "src/b.py"}),
        ("cat src/*/*.py", {"src/sub/c.py"}),
        ("wc -l src/**/*.py", {"src/sub/c.py"}),
        ("for f in a b; do cat $f.md; done", {"a.md", "b.md", ".md"}),
        ("ls src", {"src"}),
        ("grep -rn x src", {"src"}),
        ("cat src/missing.py", {"src/missing.py"}),
        ("cd src && cat a.py", {"src/a.py"}),
        ("cd src; cat a.py", {"a.py", "src/a.py"}),
        ("cd src || exit 1; cat a.py", {"src/a.py"}),
        ("cd src && cd sub && cat c.py", {"src/sub/c.py"}),
        ("x=1; y=2; echo $x", set()),
        ("cat .e*", {".env"}),
        ("rm a.md", set()),
        ("echo x > f.md", set()),
        ("echo x >> f.md", {"f.md"}),
        ("cat a.md &>> f.md", {"a.md", "f.md"}),
        ("tee f.md < a.md", {"a.md"}),
        ("tee -a f.md < a.md", {"a.md", "f.md"}),
        ("tee --append f.md < a.md", {"a.md", "f.md"}),
        ("xxd -r a.md f.txt", {"a.md", "f.txt"}),
        ("cat /dev/stderr 2>> f.md", {"/dev/stderr", "f.md"}),
        ("zcat a.gz", {"a.gz"}),
        ("unzip -l a.zip", {"a.zip", "a.zip.zip", "a.zip.ZIP"}),
        ("date; uname -a; sleep 1", set()),
    ],
)
def test_the_files_that_a_command_reads_are_named(command: str, names: set[str], workspace: Path) -> None:
    assert reads(command, workspace) == names


@pytest.mark.parametrize("command", ["ls", "find . -name x", "rg x", "grep -r x", "tree", "du -sh"])
def test_a_command_without_paths_reads_the_folder(command: str, workspace: Path) -> None:
    assert reads(command, workspace) == {"/workspace"}


@pytest.mark.parametrize(
    "command",
    [
        "cat $x", 'cat "$(ls)"', "cat /etc/*", "cat /proc/self/envir?n", "cat /proc/self/cwd/f.md", "cat"
        " /dev/fd/3 3<f.md",
        "ls | xargs cat", "while read f; do cat \"$f\"; done < a.md", "python3 x.py", "make", "tar xf a.tar", "cp"
        " a.md y.md",
        "ln -s f.md y.md; cat y.md", "wc --files0-from=a.md", "md5sum -c a.md", "tac *", "head -n $A a.md", "cat"
        " ~root/x",
        "read v < a.md; cat $v", "v=a; v+=b; cat $v", "v=${w:-f}; cat $v.md", ": ${v:=f}; cat $v.md", "((v=1));"
        " cat $v.md",
        "cd $x; cat f.md", "pushd src; cat a.py", "cat $PWD/*/f.md", "find . -exec cat {} +", "find . -exec cat"
        " {}/../f.md +",
        "diff -r src src", "grep -R x .", "strings @a.md", "jq 'import \"x\" as $x; .' a.md", "x=1 cat $x",
        "zcat a", "zcat a.md", "strings -n @a.md b.md", "A=a.md; read < b.md A; cat $A", "find src -exec echo -type"
        " f ';' -exec cat {} ';'", "A=%; xargs -I% cat $A", "xargs -I{} -n1 cat", "A={}; find . -type f -exec cat"
        " $A ';'",
        "A=a.md; time -p read A < b.md; cat $A", "cat src/*/../../.env", "sed -i.bak s/a/b/ a.md", "git log",
        "unzip a.zip", "unzip -l 'a*.zip'", "unzip -l -d b a.zip", "unzip -lo a.zip",
    ],
)  # fmt: skip
def test_unknown_reads_are_reported_as_unknown(command: str, workspace: Path) -> None:
    assert reads(command, workspace) is None


def test_links_are_followed_as_in_the_sandbox(workspace: Path) -> None:
    (workspace / "relative").symlink_to("f.md")
    (workspace / "absolute").symlink_to("/workspace/f.md")
    (workspace / "folder").symlink_to("/workspace/src")
    (workspace / "round").symlink_to("round")
    assert reads("cat relative", workspace) == {"f.md"}
    assert "f.md" in (reads("cat absolute", workspace) or ())
    assert "src/a.py" in (reads("cat folder/a.py", workspace) or ())
    assert "f.md" in (reads("cd folder; cat ../f.md", workspace) or ())
    assert "f.md" in (reads("cd folder; cd ..; cat f.md", workspace) or ())
    assert reads("cat round", workspace)


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/cwd/f.md",
        "/proc/thread-self/cwd/f.md",
        "/dev/fd/{0}",
        "//dev/../proc/self/fd/{0}",
        "mine/f.md",
        "deep",
    ],
)
def test_process_paths_of_a_command_are_not_resolved_in_this_process(
    path: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace / "a b")
    (workspace / "mine").symlink_to("/proc/self/cwd")
    (workspace / "deep").symlink_to("mine/f.md")
    with open("f.md", encoding="utf-8") as held:
        path = path.format(held.fileno())
        texts = (f"cat {path}", f"cat < {path}", f"bash {path}", f"git -C {path} status")
        found = [shell_actions("bash", text, cwd=workspace, isolated=False) for text in texts]
        runs = [*found[2][0].runs, f"/workspace/{path}" if path in ("mine/f.md", "deep") else path]
        leads = [resolve(name, (Mount(workspace, "/workspace", writable=True),), mapped=False) for name in runs]
    assert [actions[0].reads for actions in found] == [None] * 4
    assert not found[-1][0].harmless
    assert set(leads) == {None}


@pytest.mark.parametrize("path", ["/dev/stdin", "/dev/stderr", "/dev/null", "/proc/mounts"])
def test_a_device_or_process_file_is_named_unresolved_on_the_host(path: str, workspace: Path) -> None:
    found = shell_actions("bash", f"head {path}", cwd=workspace, isolated=False)
    assert found[0].reads == (path,)


def test_an_unquoted_directory_name_with_a_blank_makes_the_reads_unknown(workspace: Path) -> None:
    assert reads("cd 'a b' && cat $PWD/f.md", workspace) is None
    assert reads("cd 'a b' && cat \"$PWD/f.md\"", workspace) == {"a b/f.md"}


def test_many_names_collapse_into_their_folder(workspace: Path) -> None:
    for number in range(300):
        (workspace / "src" / f"n{number}.txt").write_text("")
    assert reads("cat src/*.txt", workspace) == {"src"}


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("python3 build.py", {"build.py"}),
        ("./x", {"x"}),
        ("bash x.sh", {"x.sh"}),
        (". ./x", {"x"}),
        ("source venv/bin/activate", {"venv/bin/activate"}),
        ("make -f other.mk", {"other.mk"}),
        ("make", {"GNUmakefile", "makefile", "Makefile"}),
        ("make -C src", {"src/GNUmakefile", "src/makefile", "src/Makefile"}),
        ("npm test", {"package.json"}),
        ("node x.js", {"x.js"}),
        ("sed -f s.sed x", {"s.sed"}),
        ("awk -f p.awk x", {"p.awk"}),
        ("find . -exec ./x {} \\;", {"x"}),
        ("timeout 5 python3 x.py", {"x.py"}),
        ("bash -c 'python3 x.py'", {"x.py"}),
        ("cd src && python3 a.py", {"src/a.py"}),
        ("pip install -r requirements.txt", {"requirements.txt"}),
        ("cat x", set()),
    ],
)
def test_executed_files_are_named(command: str, names: set[str], workspace: Path) -> None:
    found = {name.removeprefix("/workspace/") for action in actions(command, workspace) for name in action.runs}
    assert found == names


@pytest.mark.parametrize(
    ("command", "more"),
    [("python3 x.py", True), ("pytest", True), ("make", True), ("eval x", True), ("ls", False), ("cat x", False)],
)
def test_a_command_that_may_run_more_is_marked(command: str, more: bool, workspace: Path) -> None:
    assert any(action.runs_more for action in actions(command, workspace)) is more
