"""The content that a command runs: every change is reported, within limits and inside the workspace."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kernel.permissions import Action, Coverage, CoveredFile
from shoal.kernel.ports import Mount
from shoal.tools.coverage import BOUND_BYTES_MAX, NOTHING, Content, ContentReader, coverage_key, swapped_of
from shoal.tools.jail import SANDBOX_FILES, resolve

RUN = Action("tool:bash:bash x.sh", runs=("/workspace/x.sh",))
MAKE = Action("tool:bash:make", runs=("/workspace/Makefile",), runs_more=True, reads=None)
OPAQUE = Action("tool:bash:bash", opaque=True, runs_more=True, reads=None)


def mounts(root: Path) -> tuple[Mount, ...]:
    for name in ("workspace", "scratch"):
        (root / name).mkdir(exist_ok=True)
    return (
        Mount(root / "workspace", "/workspace", writable=True),
        Mount(root / "scratch", "/scratch", writable=True),
        Mount(root / "attachments", "/attachments"),
    )


def read(root: Path, *actions: Action, limits: tuple[int, ...] = (), fetched: str = "") -> Content:
    return ContentReader(*limits).read(actions, mounts(root), mapped=True, fetched=fetched)


def write(root: Path, name: str, text: str = "x") -> Path:
    path = root / "workspace" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_command_that_runs_no_file_covers_nothing(tmp_path: Path) -> None:
    assert (
        read(tmp_path, Action("tool:bash:ls", harmless=True), Action("tool:bash:x", whole=True, runs=("/x",)))
        is NOTHING
    )


def test_named_files_are_covered_by_their_bytes_and_where_links_lead(tmp_path: Path) -> None:
    places = mounts(tmp_path)
    write(tmp_path, "x.sh", "echo\n")
    (file,) = read(tmp_path, RUN).coverage.files
    assert (file.path, file.size_bytes) == ("/workspace/x.sh", 5)
    (places[1].host / "real.sh").write_text("echo\n")
    (tmp_path / "workspace" / "x.sh").unlink()
    assert read(tmp_path, RUN).coverage.files == (CoveredFile("/workspace/x.sh", -1, ""),)
    (tmp_path / "workspace" / "x.sh").symlink_to("/scratch/real.sh")
    (linked,) = read(tmp_path, RUN).coverage.files
    assert (linked.path, linked.digest) == ("/workspace/x.sh -> /scratch/real.sh", file.digest)


def test_a_folder_is_covered_recursively(tmp_path: Path) -> None:
    write(tmp_path, "pkg/__main__.py")
    write(tmp_path, "pkg/data/table.csv")
    action = Action("tool:bash:python3 pkg", runs=("/workspace/pkg",))
    before = read(tmp_path, action).coverage
    assert [(file.path, file.size_bytes) for file in before.files] == [("/workspace/pkg/", 2)]
    write(tmp_path, "pkg/data/table.csv", "y")
    assert read(tmp_path, action).coverage != before


@pytest.mark.parametrize("path", ["/tmp/x.sh", "/proc/self/cwd/x.sh", "/x.sh", "host:/workspace/x.sh"])
def test_files_outside_the_mounts_are_not_covered(tmp_path: Path, path: str) -> None:
    assert read(tmp_path, Action("tool:bash:bash x", runs=(path,))).coverage.uncovered


def test_system_files_are_not_mentioned(tmp_path: Path) -> None:
    assert read(tmp_path, Action("tool:bash:bash x", runs=("/usr/bin/x",))).coverage == Coverage()


def test_links_in_a_circle_and_pipes_are_not_covered(tmp_path: Path) -> None:
    mounts(tmp_path)
    (tmp_path / "workspace" / "x.sh").symlink_to("x.sh")
    assert "the target of x.sh" in read(tmp_path, RUN).coverage.uncovered
    (tmp_path / "workspace" / "x.sh").unlink()
    os.mkfifo(tmp_path / "workspace" / "x.sh")
    assert "x.sh cannot be read (it is not a file)" in read(tmp_path, RUN).coverage.uncovered


def test_an_approval_covers_code_in_any_folder_but_not_data(tmp_path: Path) -> None:
    for name in (
        "Makefile",
        "lib.py",
        "sub/deep/run",
        ".git/config",
        ".git/hooks/post-commit",
        "notes.md",
        ".git/HEAD",
    ):
        write(tmp_path, name)
    (mounts(tmp_path)[1].host / "s.py").write_text("x")
    before = read(tmp_path, MAKE).coverage
    assert before.others == 5  # the makefile counts as named
    for name in ("notes.md", ".git/HEAD"):
        write(tmp_path, name, "other")
        assert read(tmp_path, MAKE).coverage == before
    write(tmp_path, "notes.md").chmod(0o755)
    assert read(tmp_path, MAKE).coverage.others == 6
    (tmp_path / "workspace" / "link.txt").symlink_to("notes.md")
    assert read(tmp_path, MAKE).coverage.others == 7


@pytest.mark.parametrize(("limits", "why"), [((2,), "2 files"), ((99, 3), "3 bytes")])
def test_beyond_the_limits_the_named_files_stay_covered(tmp_path: Path, limits: tuple[int, ...], why: str) -> None:
    write(tmp_path, "Makefile")
    for number in range(3):
        write(tmp_path, f"{number}.py")
    found = read(tmp_path, MAKE, limits=limits).coverage
    assert [file.size_bytes for file in found.files] == [1]
    assert why in found.uncovered
    write(tmp_path, "2.py").unlink()
    assert read(tmp_path, MAKE, limits=limits).coverage.uncovered == ""


def test_input_from_other_parts_of_a_command_is_considered(tmp_path: Path) -> None:
    write(tmp_path, "x.txt", "echo")
    cat = Action("tool:bash:cat x.txt", harmless=True, reads=("/workspace/x.txt",))
    assert [file.path for file in read(tmp_path, cat, OPAQUE).coverage.files] == ["/workspace/x.txt"]
    assert read(tmp_path, cat, RUN).coverage.files == (CoveredFile("/workspace/x.sh", -1, ""),)
    unpack = Action("tool:bash:tar xf x.tar", reads=None)
    assert "one of its parts" in read(tmp_path, unpack, RUN).coverage.uncovered
    checkout = Action("tool:bash:git checkout x", runs_more=True, reads=None)
    assert "one of its parts" in read(tmp_path, checkout, MAKE).coverage.uncovered
    assert read(tmp_path, checkout).coverage.uncovered == ""
    assert read(tmp_path, RUN, fetched="what curl fetched").coverage.uncovered == "it may run what curl fetched"


def test_only_script_bytes_are_pinned_and_only_in_read_only_commands(tmp_path: Path) -> None:
    write(tmp_path, "x.sh", "echo")
    write(tmp_path, "Makefile")
    assert [file.content for file in read(tmp_path, RUN).runs] == [b"echo"]
    assert [file.content for file in read(tmp_path, MAKE).runs] == [None]
    chmod = Action("tool:bash:chmod +x x.sh")
    assert [file.content for file in read(tmp_path, chmod, RUN).runs] == [None]
    for text, held in (("#!/bin/sh", True), ("echo", False)):
        write(tmp_path, "x.yml", text)
        (file,) = read(tmp_path, Action("tool:bash:x", runs=("/workspace/x.yml",))).runs
        assert (file.content is not None) is held
    write(tmp_path, "x.sh", " " * (BOUND_BYTES_MAX + 1))
    large = read(tmp_path, RUN)
    assert [file.content for file in large.runs] == [None]
    assert large.coverage.uncovered == "x.sh is too large to be preserved while it runs"


def test_a_replaced_file_is_distinguished_from_the_one_read(tmp_path: Path) -> None:
    path = write(tmp_path, "x.sh")
    runs = read(tmp_path, RUN).runs
    assert swapped_of(runs) == ""
    path.with_name("new").write_text("x")
    path.with_name("new").rename(path)
    assert swapped_of(runs) == "x.sh"
    path.unlink()
    assert swapped_of(runs) == "x.sh"


def test_changes_are_described_in_one_sentence_per_file(tmp_path: Path) -> None:
    reader, places = ContentReader(), mounts(tmp_path)

    def look() -> Coverage:
        return reader.read([MAKE], places, mapped=True).coverage

    write(tmp_path, "a.py")
    before = look()
    assert reader.changes(before, before, "then") == ""
    write(tmp_path, "Makefile", "all:")
    write(tmp_path, "a.py", "y")
    write(tmp_path, "b.py")
    now = look()
    assert reader.changes(before, now, "then") == (
        "Makefile is new since then: 4 bytes. a.py changed since then. b.py is new since then."
    )
    (tmp_path / "workspace" / "Makefile").unlink()
    assert reader.changes(now, look(), "then") == "Makefile was removed since then."
    elsewhere = ContentReader()
    assert elsewhere.changes(before, now, "then").endswith("Other code files changed since then (1 then, 2 now).")


def test_endless_folders_are_not_scanned(tmp_path: Path) -> None:
    write(tmp_path, "a/" * 80 + "x.py")
    assert "64 folders deep" in read(tmp_path, MAKE).coverage.uncovered
    folder = Action("tool:bash:python3 a", runs=("/workspace/a",))
    assert "64 folders deep" in read(tmp_path, folder).coverage.uncovered


def test_an_undecodable_name_is_covered(tmp_path: Path) -> None:
    mounts(tmp_path)
    name = os.fsencode(tmp_path / "workspace") + b"/\xff.py"
    Path(os.fsdecode(name)).write_text("x")
    before = read(tmp_path, MAKE).coverage
    Path(os.fsdecode(name)).write_text("y")
    assert before.others == 1
    assert read(tmp_path, MAKE).coverage != before


names = st.sampled_from(["x.sh", "lib.py", "sub/y.py", "Makefile", ".git/config", "run"])


@settings(max_examples=60, deadline=None)
@given(before=st.dictionaries(names, st.binary(max_size=4)), after=st.dictionaries(names, st.binary(max_size=4)))
def test_the_key_differs_exactly_when_the_code_does(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    keys: list[str] = []
    for files in (before, after):
        root = tmp_path_factory.mktemp("home")
        mounts(root)
        for name, content in files.items():
            write(root, name).write_bytes(content)
        keys.append(coverage_key(read(root, MAKE, RUN).coverage))
    assert (keys[0] == keys[1]) is (before == after)


@settings(max_examples=60, deadline=None)
@given(
    target=st.lists(st.sampled_from(["..", ".", "a", "/scratch", "/workspace", "link", "/etc"]), min_size=1, max_size=5)
)
def test_no_link_leads_out_of_the_mounts(tmp_path_factory: pytest.TempPathFactory, target: list[str]) -> None:
    root = tmp_path_factory.mktemp("home")
    places = mounts(root)
    (places[0].host / "a").mkdir()
    (places[0].host / "link").symlink_to("/".join(target))
    found = resolve("/workspace/link", places, mapped=True)
    assert found is None or found.mount is SANDBOX_FILES or found.host.is_relative_to(root)
