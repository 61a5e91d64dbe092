"""Known programs and options: a program is recognized only by its bare name, and each option must be listed."""

import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.permissions import Action
from shoal.permissions.actions import shell_actions
from shoal.permissions.code_files import is_code
from shoal.shell.options import PROGRAMS, Program, read_options
from shoal.shell.words import Piece, Value, Word, expand, may_be_option, quote

CWD = Path("/nowhere/ws")
WORDS = st.text(alphabet=string.ascii_letters + string.digits + "-=./_*?{}$'\" ;|&<>()[]~\\\n", max_size=40)


def parts(command: str, cwd: Path = CWD) -> list[Action]:
    return [action for action in shell_actions("bash", command, cwd=cwd) if not action.whole]


def is_opaque(command: str) -> bool:
    return any(part.opaque for part in parts(command))


def is_harmless(command: str, cwd: Path = CWD) -> bool:
    return all(part.harmless and part.reads is not None for part in parts(command, cwd))


def programs() -> Iterator[tuple[tuple[str, ...], Program]]:
    left = [((name,), program) for name, program in PROGRAMS.items()]
    while left:
        words, program = left.pop()
        yield words, program
        left += [((*words, name), sub) for name, sub in program.subs.items()]


# ---- properties ----


@given(WORDS)
def test_decisions_are_total_and_stable(command: str) -> None:
    found = parts(command)
    assert found
    assert found == parts(command)


@given(WORDS)
def test_a_harmless_command_is_never_opaque_and_an_opaque_one_reads_anything(command: str) -> None:
    for part in parts(command):
        assert not (part.harmless and part.opaque)
        if part.opaque and not part.also:
            assert part.reads is None
            assert part.runs_more


KNOWN_OTHERWISE = ("command", "export", "find", "mapfile", "printf", "read", "set", "test", "unset", "wait")
"""Builtins and programs that are parsed without the option list."""


@given(
    st.text(alphabet=string.ascii_lowercase + string.digits + "_.+-", min_size=1).filter(lambda x: x not in PROGRAMS)
)
def test_an_unknown_program_is_opaque(name: str) -> None:
    assert is_opaque(quote(name)) or name in KNOWN_OTHERWISE


@pytest.mark.parametrize("path", ["./{}", "/bin/{}", "/workspace/{}", "../{}", "sub/{}", "~/{}"])
@pytest.mark.parametrize("name", ["ls", "test", "cat", "git status", "python3 x.py", "echo x", "[ -f x ]"])
def test_a_program_given_by_path_is_unknown(path: str, name: str) -> None:
    assert is_opaque(path.format(name))


def test_an_unlisted_option_is_opaque() -> None:
    for words, program in programs():
        if program.style != "none" and words[0] != "-m":
            for option in ("--frobnicate", "--frobnicate=x", "--frobnicate x"):
                assert is_opaque(f"{' '.join(words)} {option}"), (words, option)


def test_a_word_that_may_become_an_option_counts_as_an_option() -> None:
    for words, program in programs():
        if program.style != "none" and not program.free and words[0] != "-m":
            for word in ("*", "$x", "$(id)", '"$x"', "?x"):
                assert is_opaque(f"{' '.join(words)} {word}"), (words, word)


def test_every_role_and_check_in_the_table_exists() -> None:
    """A misspelled role or check would silently have no effect."""
    for words, program in programs():
        assert {role.rstrip("*") for role in program.operands.split()} <= set("rwmcdnx+!:"), words
        assert set(program.known.values()) <= {*"rwmcdn!:?2", "flag"}, words
        assert parts(" ".join(words)), words


def test_digits_of_a_program_name_are_kept() -> None:
    for name in ("diff3", "ls2", "cat9", "git2", "python4", "python3.99", "md4sum"):
        assert is_opaque(name)


# ---- parsing options ----


PROGRAM = Program("r*", "-abn -o=w -i=? -e= -# --all --out=w --color=?")


def words_of(text: str) -> list[Word]:
    return [Word(word, word, word) for word in text.split(" ")]


@pytest.mark.parametrize(
    ("text", "options", "operands"),
    [
        ("x -ab f", ["-a", "-b"], ["f"]),
        ("x -aoOUT f", ["-a", "-o=OUT"], ["f"]),
        ("x -ao OUT f", ["-a", "-o=OUT"], ["f"]),
        ("x -o -a f", ["-o=-a"], ["f"]),
        ("x -ibak f", ["-i=bak"], ["f"]),
        ("x -i bak", ["-i"], ["bak"]),
        ("x f -a", ["-a"], ["f"]),
        ("x -- -a", [], ["-a"]),
        ("x --out=f g", ["--out=f"], ["g"]),
        ("x --out f g", ["--out=f"], ["g"]),
        ("x --color f", ["--color"], ["f"]),
        ("x --color=never f", ["--color=never"], ["f"]),
        ("x -12 f", [], ["f"]),
        ("x - f", [], ["-", "f"]),
    ],
)
def test_options_are_parsed_like_the_program_does(text: str, options: list[str], operands: list[str]) -> None:
    reading = read_options(PROGRAM, words_of(text), {})
    assert reading.offending is None
    assert [name + (f"={word.value}" if word else "") for name, _, word in reading.options] == options
    assert [word.value for word in reading.operands] == operands


@pytest.mark.parametrize(
    "text", ["x -ac", "x --al", "x --all=1", "x --outx=1", "x -o", "x --out", "x -1a", "x --colour"]
)
def test_options_that_are_neither_listed_nor_a_prefix_are_unknown(text: str) -> None:
    assert read_options(PROGRAM, words_of(text), {}).offending is not None


# ---- word expansion ----


def piece(kind: str, text: str = "", *, quoted: bool = False) -> Piece:
    return Piece(kind, text, quoted)  # type: ignore[arg-type]


def uncertain(*pieces: Piece) -> Word:
    return Word("?", None, "", splits=True, pieces=pieces)


def test_braces_variables_and_patterns_are_expanded() -> None:
    comma, opening, closing = piece("brace", ","), piece("brace", "{"), piece("brace", "}")
    braces = uncertain(opening, piece("text", "a"), comma, piece("text", "-b"), closing, piece("text", ".md"))
    assert expand(braces) == ("a.md", "-b.md")
    assert may_be_option(braces)
    assert not may_be_option(uncertain(piece("text", "./"), piece("glob", "*")))
    known = {"x": (Value(Word("f", "f", "f")),), "y": None}
    assert expand(uncertain(piece("variable", "x"), piece("text", ".md")), known) == (".md", "f.md")
    assert expand(uncertain(piece("variable", "y"), piece("text", ".md")), known) is None
    assert expand(uncertain(piece("variable", "z")), known) is None


def test_a_globbed_file_name_may_contain_options() -> None:
    listed = {"f": (Value(uncertain(piece("glob", "*"), piece("text", ".py")), listed=True),)}
    assert expand(uncertain(piece("variable", "f")), listed) is None
    assert expand(uncertain(piece("variable", "f", quoted=True)), listed) == ("", "\0.py")


# ---- allowed word classes ----

RUNS_SOMETHING = [
    "sed -n p *",
    "for f in *; do sed -n p $f; done",
    "sed -n p {-e1e,x}",
    "x=(['a[$(id)]']=1)",
    "x+=([$y]=1)",
    "for A in -v; do test x -o \"$A\" 'y[$(id)]'; done",
    "[ $x ]",
    "test -R x",
    "diff3 --diff-program=id a b c",
    "git grep -nO'id'",
    "git grep -nOid x",
    "git clone -qu id x",
    "git clone -qc core.fsmonitor=id x",
    "git clone --config core.sshCommand=id x",
    "git -c core.pager=id log",
    "git log --format=%G?",
    "git log --pretty=%GK",
    "git log --show-signature",
    "git help log",
    "sdiff a b",
    "groff -U x",
    "x86_64-linux-gnu-gcc -B. x.c",
    "x86_64-linux-gnu-perl -e 1",
    "gcc -B. x.c",
    "gcc *.c",
    "prove -e id",
    "debconf id",
    "sg root id",
    "pip --pyth x",
    "tar x*",
    "tar tf h:x",
    "sort *",
    "sort --co id x",
    "{git,push,origin,main}\n}",
    "ls\n)",
    "if true; then\nfi",
    "cat <<A; ls\nx\nA\n}",
    "f() { ls; }; f\n}",
    "case x in\nx) ls\n}",
    "let x=1",
    "printf -v PATH x",
    "printf 'x%n' PATH",
    'printf "$f" PATH',
    "mapfile -C id x",
    "wait -p PATH",
    "declare -a A=([x]=1)",
    "find . -exec sh -c 'ls {}' \\;",
    'find . -name "$x" -exec "$y" {} +',
    "find *",
    "find . -fprint x",
    "xargs sed -n p",
    "xargs --process-slot-var=PATH wc",
    "xargs rg x",
    "env PATH=. ls",
    "env -S 'ls x'",
    "env -C x ls",
    "bash -lc ls",
    "bash <(ls)",
    "python3 /dev/stdin",
    "sh -c 'echo $'\"'\"'x'",
    "rg --pre id x",
    "awk 'BEGIN{SYMTAB[\"x\"]=1}'",
    "awk '{print | \"id\"}' x",
    "awk -f x",
    "sed -f x y",
    "sed '1e id' x",
    "sed 's/[/]/;s,/w Makefile\n,x,' y",
    "make SHELL=x",
    "npx cowsay",
    "npm exec x",
    "cmake -D CMAKE_C_COMPILER=./p .",
    "go build -ldflags -extld=./p",
    "uv run --python ./p x.py",
    "TZ=:/workspace/x date",
    "time { ls; }",
    "! ! ls",
    "ls\rid",
]


@pytest.mark.parametrize("command", RUNS_SOMETHING)
def test_commands_that_could_run_or_load_code_are_opaque(command: str) -> None:
    assert is_opaque(command)


TRANSPARENT = [
    "time ls",
    "timeout 5 ls",
    "timeout -k 1 5s grep -n x f.txt",
    "nice -n 5 ls",
    "env LANG=C ls",
    "command ls",
    "command -v ls",
    "! ls",
    "bash -c 'ls; cat f.txt'",
    "find . -type f -exec grep -n x {} +",
    "time -p timeout 3 nice ls",
]


@pytest.mark.parametrize("command", TRANSPARENT)
def test_a_runner_of_a_harmless_command_is_harmless(command: str) -> None:
    assert is_harmless(command)


@pytest.mark.parametrize(
    "command",
    [
        "timeout 5 ./x", "env LANG=C make", "xargs rm", "bash -c 'make'", "time git push",
        "find . -type f -exec uniq {} +",
    ],
)  # fmt: skip
def test_a_runner_is_never_more_harmless_than_its_command(command: str) -> None:
    assert not is_harmless(command)


PLAIN_BUT_NOT_HARMLESS = [
    "bash x.sh", "python3 x.py", "python3 -m pytest", "make", "make -f x", "npm test", "npm run x", "npm install",
    "cargo test", "go test ./...", "pytest -q", "node x.js", "rm x", "cp a b", "mv a b", "ln -s a b", "chmod +x x",
    "tar xzf a.tgz", "curl http://x", "pip install x", "source .venv/bin/activate", "git checkout x", "git fetch",
    "git stash", "docker ps", "kill 1", "yq . x.yaml", "node --version", "cargo --version",
]  # fmt: skip


@pytest.mark.parametrize("command", PLAIN_BUT_NOT_HARMLESS)
def test_commands_that_run_or_change_the_workspace_are_plain_but_not_harmless(command: str) -> None:
    assert not is_opaque(command)
    assert not is_harmless(command)


# ---- writes ----

WRITES = ["sort -o {} x", "uniq x {}", "tee {}", "sed -i s/a/b/ {}", "tree -o {}", "xxd -r x {}", "touch {}", "ls > {}"]


@pytest.mark.parametrize("command", WRITES)
def test_a_write_is_harmless_only_where_nothing_executes_it(command: str, tmp_path: Path) -> None:
    (tmp_path / "run.txt").write_text("#!/bin/sh\n")
    (tmp_path / "tool.csv").write_text("x")
    (tmp_path / "tool.csv").chmod(0o755)
    (tmp_path / "two.md").hardlink_to(tmp_path / "tool.csv")
    (tmp_path / "link.txt").symlink_to("Makefile")
    for name in ("notes.txt", "a/b.md", "/workspace/x.csv", "data/x.json"):
        assert is_harmless(command.format(name), tmp_path), name
    for name in (
        "Makefile", "conftest.py", "x.sh", "x", "package.json", ".envrc", ".git/config", ".git/hooks/x.txt",
        "/etc/x.txt",
        "../x.txt", "CMakeLists.txt", "requirements.txt", "templates/x.html", ".github/x.md", "run.txt", "tool.csv",
        "two.md", "link.txt", '"$x"', "$x",
    ):  # fmt: skip
        assert not is_harmless(command.format(name), tmp_path), name


def test_a_backup_file_counts_as_written() -> None:
    assert not is_harmless("sed -i.sh s/a/b/ x.txt")
    assert not is_harmless("sed -i'.git/hooks/*' s/a/b/ x.txt")


@pytest.mark.parametrize("name", ["x.py", "x", "Makefile", ".bashrc", "a/.b/c.txt", "x.json", "x.PY", "bin/x.txt"])
def test_unknown_files_count_as_code(name: str) -> None:
    assert is_code(name)
