"""Parsing a shell command into its parts. Each case is a way to hide one command behind another."""

import weakref
from pathlib import Path

import pytest
import tree_sitter_bash
from tree_sitter import Language, Parser

from shoal.kernel.permissions import Action
from shoal.kernel.ports import Mount
from shoal.permissions.actions import COMMAND_CHARS_MAX, path_name, shell_actions
from shoal.shell.reader import ShellReader

CWD = Path("/nowhere/ws")


def parts(command: str) -> list[str]:
    """Return the parts that need an allow rule, without `tool:bash:`. Opaque parts start with a question mark."""
    found = [action for action in shell_actions("bash", command, cwd=CWD) if not action.whole]
    return [("? " if action.opaque else "") + action.text.removeprefix("tool:bash:") for action in found]


def views(command: str) -> set[str]:
    """Return the additional texts that deny patterns are matched against."""
    found = shell_actions("bash", command, cwd=CWD)
    return {action.text.removeprefix("tool:bash:") for action in found if action.whole}


def naming(command: str) -> str:
    """Return the text that an allow rule must contain to permit the first opaque part."""
    found = next(action for action in shell_actions("bash", command, cwd=CWD) if action.opaque)
    return (found.naming or found.text).removeprefix("tool:bash:")


def is_unreadable(command: str) -> bool:
    found = [action for action in shell_actions("bash", command, cwd=CWD) if not action.whole]
    return len(found) == 1 and found[0].opaque and not found[0].naming


SPELLINGS = [
    "rm -rf x",
    "'rm' -rf x",
    'r"m" -rf x',
    "\\rm -rf x",
    "r\\m -rf 'x'",
    "$'rm' -rf x",
    "$'\\x72m' -rf x",
    "$'\\162m' -rf x",
    "rm\t-rf   x",
    "rm \\\n -rf x",
    "  rm -rf x  # why",
    "''rm -r''f x",
    "rm -rf x;",
    "rm -rf x &",
    "\nrm -rf x\n",
    "rm '-rf' \"x\"",
]


@pytest.mark.parametrize("command", SPELLINGS)
def test_every_spelling_of_a_command_gives_the_same_action(command: str) -> None:
    assert parts(command) == ["rm -rf x"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ls; rm x", ["ls", "rm x"]),
        ("ls && rm x || pwd", ["ls", "rm x", "pwd"]),
        ("ls | rm x |& cat", ["ls", "rm x", "cat"]),
        ("ls & rm x", ["ls", "rm x"]),
        ("ls\nrm x", ["ls", "rm x"]),
        ("ls # ; pwd\nrm x", ["ls", "rm x"]),
        ("echo '; rm x'", ["echo '; rm x'"]),
        ("echo \\; rm x", ["echo ';' rm x"]),
        ("(ls; rm x)", ["ls", "rm x"]),
        ("{ ls; rm x; }", ["ls", "rm x"]),
        ("! rm x", ["rm x"]),
        ("ls $(rm x)", ["rm x", "ls $(rm x)"]),
        ("ls `rm x`", ["rm x", "ls `rm x`"]),
        ('ls "a $(rm x) b"', ["rm x", "ls 'a '\"$(rm x)\"' b'"]),
        ("ls '$(rm x)'", ["ls '$(rm x)'"]),
        ('ls "\\$(rm x)"', ["ls '$(rm x)'"]),
        ("ls $(ls $(rm x))", ["rm x", "ls $(rm x)", "ls $(ls $(rm x))"]),
        ("ls <(rm x)", ["rm x", "ls <(rm x)"]),
        ("ls > >(rm x)", ["rm x", "? > >(rm x)", "ls"]),
        ("ls ${y:-$(rm x)}", ["rm x", "ls ${y:-$(rm x)}"]),
        ("ls ${y:-`rm x`}", None),
        ("cat <<< $(rm x)", ["rm x", "cat"]),
        ("cat <<E\n$(rm x)\nE\n", ["rm x", "cat"]),
        ("cat <<'E'\n$(rm x)\nE\nrm y", ["cat", "rm y"]),
        ("cat <<E; rm x\nE\n", None),
        ("cat <<E | rm x\nE\n", ["rm x", "cat"]),
        ("cat <<E && rm x\nE\n", ["rm x", "cat"]),
        ("cat <<-E\n\tE\nrm x", ["cat", "rm x"]),
        ("y=$(rm x)", ["rm x", "y=$(rm x)"]),
        ("y=1 z=2", ["y=1", "z=2"]),
        ("y=(a $(rm x))", ["rm x", "y=(a $(rm x))"]),
        ("if rm a; then rm b; elif rm c; then rm d; else rm e; fi", ["rm a", "rm b", "rm c", "rm d", "rm e"]),
        ("while rm a; do rm b; done", ["rm a", "rm b"]),
        ("until rm a; do rm b; done", ["rm a", "rm b"]),
        ("for i in $(rm a); do rm $i; done", ["rm a", "rm $i"]),
        ("case $(rm a) in b) rm c;; *) rm d; rm e;; esac", ["rm a", "rm c", "rm d", "rm e"]),
        ("[[ -f $(rm x) ]]", ["rm x", "[[ -f $(rm x) ]]"]),
        ("[ -f $(rm x) ]", ["rm x", "? [ -f $(rm x) ]"]),
        ("echo $(( $(rm x) ))", None),
        ("f() { rm x; }", ["rm x"]),
        ("f() { rm x; }; f y", ["rm x", "? f y"]),
        ("ls() { rm x; }; ls", ["rm x", "? ls"]),
        ("function f { rm x; }", ["rm x"]),
        ("ls 2>&1 >&2 2>/dev/null", ["ls"]),
        ("ls 2>err x", ["> /workspace/err", "ls x"]),
        (">out ls x", ["> /workspace/out", "ls x"]),
        ("echo {a,b} *.py ~/x", ["echo {a,b} *.py ~/x"]),
        ("echo 'a b' '' x\\ y", ["echo 'a b' '' 'x y'"]),
        ("echo $HOME'/x'y", ["echo $HOME/xy"]),
        ("echo $x'y' ${x}y $x\"y\"", ["echo ${x}y ${x}y ${x}y"]),
        ("echo '$x'", ["echo '$x'"]),
        ("'a=b' c", ["? 'a=b' c"]),
        ("'if' x", ["? 'if' x"]),
        ("# nothing", [""]),
        ("", [""]),
        ("ls;", ["ls"]),
    ],
)
def test_every_part_of_a_command_line_becomes_an_action(command: str, expected: list[str] | None) -> None:
    if expected is None:
        assert any(part.startswith("? ") for part in parts(command))
    else:
        assert parts(command) == expected


@pytest.mark.parametrize(
    "command",
    [
        "ls 'x",
        'ls "x',
        "ls $(rm",
        "ls `rm x",
        "ls (",
        "ls )",
        "if ls",
        "ls && ",
        "| ls",
        "ls\0rm",
        "ls \ud800",
        "echo $'\\0' ; ls",
        "echo $'\\xff'",
        "r\\\nm x",
        "ls\\\n-la",
        'ls "$\\\n(rm x)"',
        "ls\rrm x",
        "ls\x0brm",
        'ls $"x"',
        "ls >&'$(rm x)'",
        "ls >&$x",
        "ls >& -x y",
        "ls <& -x y",
        "ls >& -'x' y",
        "ls 2>& \\\n -x",
        "ls {fd}>x",
        "cat <<$x\nls\n$x",
        "cat <<E\nls",
        "cat <<E <<F\nE\nF\n",
        "cat <<E\nx\\\nE\nrm x\nE\n",
        'cat <<E "\nrm x\nE\n"',
        "x[$(rm y)]=1",
        "select x in a; do rm b; done",
        "for ((i=0; i<3; i++)); do rm x; done",
        "[[ x =~ $(rm y) ]] && [[ a =~ (b|$(rm z)) ]]",
        "ls `echo \\`rm x\\``",
        "echo ${x:-\\\n$(rm y)}" + "'",
        "a" * (COMMAND_CHARS_MAX + 1),
        "$(" * 200 + "ls" + ")" * 200,
        "; ".join(["ls"] + [f"echo {n}" for n in range(2000)]),
        "fi",
        "}",
        "ls; }",
        "ls ;; rm x",
        "ls <> ",
    ],
)
def test_an_unparsable_command_is_one_opaque_action(command: str) -> None:
    assert is_unreadable(command)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("eval rm x", "eval"),
        ('bash -c "$x"', "bash"),
        ("bash -c 'rm x", None),
        ("bash", "bash"),
        ("/bin/sh -c 'rm x'", "/bin/sh"),
        ("xargs sed -n p", 'sed -n p "$@"'),
        ("xargs -a f rm", "xargs"),
        ("env -S 'rm x'", "env"),
        ("env -i A=1 rm x", "env"),
        ("sudo -u root rm x", "sudo"),
        ("SUDO rm x", "SUDO"),
        ("nohup ./rm x", "./rm"),
        ("nice -n 1 frob x", "frob"),
        ("timeout 3 eval rm x", "eval"),
        ("timeout --frob 3 rm x", "timeout --frob"),
        ("watch rm x", "watch"),
        ("ssh host rm x", "ssh"),
        ("time eval rm x", "eval"),
        ("coproc rm x", "coproc"),
        ("exec rm x", "exec"),
        ("command -p rm x", "command"),
        ("builtin eval rm x", "builtin"),
        (". ./x", "."),
        ("source x", "source"),
        ("trap 'rm x' EXIT", "trap"),
        ("alias ls=rm", "alias"),
        ("shopt -s expand_aliases", "shopt"),
        ("hash -p /bin/rm ls", "hash"),
        ("enable -f x.so y", "enable"),
        ("mapfile -C rm -c 1 x", None),
        ("jobs -x rm x", "jobs -x"),
        ("find . -exec sh -c 'rm {}' \\;", "sh"),
        ('find . -exec rm "$x" -exec id {} ;', "find . -exec"),
        ("find . -ok rm {} ;", "find . -ok"),
        ("find . -name x -delete -execdir rm {} +", "find . -name x -delete -execdir"),
        ("find . $x", "find . $x"),
        ("find . -name *", "find . -name *"),
        ("python3 -c 'import os'", "python3 -c"),
        ("python3.12 -c 'import os'", "python3.12 -c"),
        ("python3", "python3"),
        ("python3 -", "python3 -"),
        ("python3 $x", "python3 $x"),
        ("python3 -m http.server", "python3 -m"),
        ("perl -e 'unlink x'", "perl -e"),
        ("node --eval x", "node --eval"),
        ("awk 'BEGIN{system(\"rm x\")}'", "awk 'BEGIN{system(\"rm x\")}'"),
        ("awk '{print > \"f\"}' x", "awk '{print > \"f\"}' x"),
        ("awk -f x", "awk -f x"),
        ("sed 's/a/b/e' x", "sed s/a/b/e x"),
        ("sed -n '1e rm x' y", "sed -n '1e rm x' y"),
        ("sed 'w f' x", "sed 'w f' x"),
        ("git -c alias.x='!rm y' x", "git -c 'alias.x=!rm y' x"),
        ("git -c alias.x='!rm y' log", "git -c"),
        ("git config alias.x '!rm y'", "git config"),
        ("git rebase -x rm", "git rebase -x"),
        ("git submodule foreach rm x", "git submodule foreach"),
        ("git $x", "git $x"),
        ("tar xf a --to-command=rm", "tar xf a --to-command=rm"),
        ("tar xIf rm a", "tar xIf"),
        ("tar -cf a --checkpoint-action=exec=rm b", "tar -cf a --checkpoint-action=exec=rm"),
        ("sort --compress-program=rm x", "sort --compress-program=rm"),
        ("npm exec x", "npm exec"),
        ("uv run eval x", "eval"),
        ("docker run -v /:/x a", "docker run"),
        ("make SHELL=/bin/rm", "make SHELL=/bin/rm"),
        ("A=1 rm x", "A=1 rm"),
        ("PATH=/tmp ls", "PATH=/tmp ls"),
        ("LD_PRELOAD=x ls", "LD_PRELOAD=x ls"),
        ("LANG=$(rm x) ls", "LANG=$(rm x) ls"),
        ("PATH=/tmp", "PATH="),
        ("export A=1", "export A=1"),
        ("declare -i x=y", "declare"),
        ("read PATH", "read PATH"),
        ("read 'a[$(rm x)]'", "read 'a[$(rm x)]'"),
        ("printf -v PATH x", "printf -v PATH x"),
        ("unset PATH", "unset PATH"),
        ("for PATH in /tmp; do ls; done", "for PATH"),
        ("set -a", "set"),
        ("$x rm", "$x rm"),
        ("${x} rm", "${x} rm"),
        ("$(echo rm) x", "$(echo rm) x"),
        ("r* x", "r* x"),
        ("{rm,-rf,x}", "{rm,-rf,x}"),
        ("~/rm x", "~/rm x"),
        ("rм x", "'rм' x" if not "м".isprintable() else "rм x"),
        ("let 'x=a[$(rm y)]'", "let"),
        ("test -v 'a[$(rm x)]'", "test -v 'a[$(rm x)]'"),
        ("[[ $x -eq 1 ]]", "[[ $x -eq 1 ]]"),
        ("echo ${!x}", "${!x}"),
        ("echo ${x@P}", "${x@P}"),
        ("echo ${a[$x]}", "${a[$x]}"),
        ("echo ${PATH:=/tmp}", "${PATH:=/tmp}"),
        ("x=$(cat f); echo $((x+1))", "$((x+1))"),
        ("x='a[$(rm y)]'; echo $((x))", "$((x))"),
        ("read x; echo $((x))", "$((x))"),
        ("echo $((PATH=1))", "$((PATH=1))"),
        ("((x=y[1]))", "((x=y[1]))"),
        ("/lib64/ld-linux-x86-64.so.2 /bin/rm x", "/lib64/ld-linux-x86-64.so.2"),
        ("ls > $x", "> $x"),
        ("ls > /dev/tcp/host/80", "> /dev/tcp/host/80"),
        ("pushd x; ls > y", None),
    ],
)
def test_an_opaque_command_must_be_named(command: str, name: str | None) -> None:
    found = naming(command)
    if name is not None:
        assert found == name.replace("rм", "'rм'") if "rм" in name else found == name


@pytest.mark.parametrize(
    "command",
    [
        "grep -rn 'foo bar' src", "ls -la *.py", "sed -n 1,10p x", "sed -i 's/a/b/g' x", "awk '{print $1}' x",
        "python3 x.py -c", "find . -name '*.py' -print", "git status", "git commit -m \"$(cat <<'E'\ntext\nE\n)\"",
        "tar xzf a.tgz", "pytest -q", "LANG=C sort x", "i=1; echo $((i + 1)) ${#i} $?",
        "for i in 1 2; do echo $((i*2)); done", "read -r x", "printf '%s' $x", 'test "$x" = y',
        "echo ${x%.*} ${x:-y} ${x/a/b} ${x:1:2} ${x[@]} ${#x[@]}", "set -euo pipefail", "unset x", "wait",
        "export LANG=C", "cat x | sort | uniq -c", "[[ $x == a* && -f y ]]", "[[ $x =~ ^a(b|c)+$ ]]", "npm ls",
        "cargo build",
    ],
)  # fmt: skip
def test_everyday_commands_are_plain(command: str) -> None:
    assert not [part for part in parts(command) if part.startswith("? ")]


def test_a_setting_in_an_option_cluster_must_be_named_in_full() -> None:
    assert naming("git -Pcase worktree") == "git -Pcase worktree"


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("/bin/rm -rf x", "rm -rf x"),
        ("RM x", "rm x"),
        ("A=1 rm x", "rm x"),
        ("sudo -u root rm x", "rm x"),
        ("sudo /bin/rm x", "rm x"),
        ("env A=1 rm x", "rm x"),
        ("xargs -0 rm x", "rm x"),
        ("xargs -a f rm x", "rm x"),
        ("find . -ok rm x \\;", "find . -ok rm x \\;"),
        ("eval rm x", "rm x"),
        ("eval 'r''m x'", "rm x"),
        ("ssh host 'rm x'", "rm x"),
        ("trap 'rm x' EXIT", "rm x"),
        ("'l's; r\"m\" x", "ls; rm x"),
        ("ls 'x", "ls 'x"),
        ("python3.11 -c x", "python -c x"),
    ],
)
def test_deny_patterns_see_through_disguises(command: str, seen: str) -> None:
    assert seen in views(command)


def test_the_whole_text_is_always_a_view() -> None:
    for command in ("ls;\n rm x", "ls 'x", ""):
        assert command in views(command)


def test_control_characters_in_an_action_are_escaped() -> None:
    (found,) = [action for action in shell_actions("bash", "ls 'x\ny\t", cwd=CWD) if not action.whole]
    assert found.text == "tool:bash:ls 'x\\x0ay\\x09"
    assert parts("echo 'a\nb'") == ["echo $'a\\nb'"]
    assert parts("echo 'a\u202eb\x1b'") == ["echo $'a\\u202eb\\x1b'"]


def redirected(command: str, cwd: Path = CWD, mounts: tuple[Mount, ...] = (), *, isolated: bool = True) -> list[Action]:
    found = shell_actions("bash", command, cwd=cwd, mounts=mounts, isolated=isolated)
    return [action for action in found if action.also or action.text.startswith("tool:bash:>")]


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("ls > a", ["write:/workspace/a"]),
        ("ls >> a", ["write:/workspace/a"]),
        ("ls >| a", ["write:/workspace/a"]),
        ("ls &> a", ["write:/workspace/a"]),
        ("ls >& a", ["write:/workspace/a"]),
        ("ls 2> a", ["write:/workspace/a"]),
        ("cat < a", ["read:/workspace/a"]),
        ("ls > 'a b'", ["write:/workspace/a b"]),
        ("ls > /etc/x", ["write:/etc/x"]),
        ("ls > /etc/../root/x", ["write:/root/x"]),
        ("ls > b/../c", ["write:/workspace/c"]),
        ("ls > /dev/null 2>&1", []),
        ("(ls; pwd) > a", ["write:/workspace/a"]),
        ("cat <<E > a\nE\n", ["write:/workspace/a"]),
        ("cd b && ls > a", ["write:/workspace/a", "write:/workspace/b/a"]),
        ("cd /etc; ls > a", ["write:/workspace/a", "write:/etc/a"]),
        ("ls > a; cd /etc", ["write:/workspace/a"]),
        ("cd b; cd c; ls > a", [f"write:/workspace/{path}" for path in ("a", "b/a", "c/a", "b/c/a")]),
        ("> a", ["write:/workspace/a"]),
    ],
)  # fmt: skip
def test_a_redirection_is_a_file_action(command: str, names: list[str]) -> None:
    found = redirected(command)
    assert [name.removeprefix("tool:") for action in found for name in action.also] == names
    assert not any(action.opaque for action in found)


@pytest.mark.parametrize(
    "command",
    [
        "cd $x; ls > a",
        "cd; ls > a",
        "cd -; ls > a",
        "pushd b; ls > a",
        "eval x; ls > a",
        "$x; ls > a",
        "for i in 1 2; do ls > a; cd b; done",
        "f() { ls > a; }; cd b; f",
        "CDPATH=/etc; cd b; ls > a",
        "ls > $x",
        "ls > a*",
        "ls > ~/a",
        "ls > $(echo a)",
    ],
)
def test_a_redirection_to_an_unknown_path_is_opaque(command: str) -> None:
    assert all(action.opaque for action in redirected(command))
    assert redirected(command)


def test_links_are_followed_before_a_redirection_is_named(tmp_path: Path) -> None:
    workspace, other = tmp_path / "ws", tmp_path / "other"
    workspace.mkdir()
    other.mkdir()
    (workspace / "link").symlink_to(other)
    (workspace / "up").symlink_to("../other/file")
    mounts = (Mount(workspace, "/workspace", writable=True), Mount(other, "/skills"))
    for target in ("link/x", "/workspace/link/x"):
        assert redirected(f"ls > {target}", workspace, mounts)[0].also == ("tool:write:/skills/x",)
    assert redirected("ls > up", workspace, mounts)[0].also == ("tool:write:/skills/file",)
    assert redirected("ls > up", workspace, mounts[:1])[0].also == (f"tool:write:{other}/file",)
    assert redirected("ls > ../../../../../../../../etc/x", workspace, mounts)[0].also == ("tool:write:/etc/x",)


def test_without_isolation_paths_are_those_of_the_host(tmp_path: Path) -> None:
    mounts = (Mount(tmp_path, "/workspace", writable=True),)
    assert redirected("ls > x", tmp_path, mounts, isolated=False)[0].also == ("tool:write:/workspace/x",)
    assert redirected(f"ls > {tmp_path}/x", tmp_path, mounts, isolated=False)[0].also == ("tool:write:/workspace/x",)
    assert redirected("ls > /workspace/x", tmp_path, mounts, isolated=False)[0].also == (
        "tool:write:host:/workspace/x",
    )


def test_a_path_is_named_by_its_nearest_mount(tmp_path: Path) -> None:
    mounts = (Mount(tmp_path, "/workspace"), Mount(tmp_path / "docs", "/docs"))
    assert path_name(tmp_path / "a" / "b", mounts) == "/workspace/a/b"
    assert path_name(tmp_path / "docs" / "b", mounts) == "/docs/b"
    assert path_name(tmp_path, mounts) == "/workspace"
    assert path_name(Path("/etc/x"), mounts) == "/etc/x"
    assert path_name(Path("/scratch/x"), mounts) == "host:/scratch/x"


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("rm {-rf,/}", "rm -rf /"),
        ("{rm,-rf,/}", "rm -rf /"),
        ("git {push,origin,main}", "git push origin main"),
        ("cat {1..3}", "cat 1 2 3"),
        ("cp ~/{a,$x} b{c,d}", "cp ~/a ~/$x bc bd"),
    ],
)
def test_deny_patterns_see_braces_expanded(command: str, seen: str) -> None:
    assert seen in views(command)


@pytest.mark.parametrize(
    ("command", "spelt"),
    [
        (r"cat \{a,b}", "cat '{a,b}'"),
        (r"cat {a\,b}", "cat '{a,b}'"),
        ("cat '{a',b}", "cat '{a,b}'"),
        ("cat {a,b", "cat '{a,b'"),
        ("cat {}", "cat '{}'"),
    ],
)
def test_braces_that_bash_does_not_expand_are_text(command: str, spelt: str) -> None:
    assert parts(command) == [spelt]


def test_a_reader_is_freed_with_its_command() -> None:
    tree = Parser(Language(tree_sitter_bash.language())).parse(b"ls $(id)")
    reader = ShellReader(b"ls $(id)", tree.root_node)
    reader.take()
    watch = weakref.ref(reader)
    del reader
    assert watch() is None
