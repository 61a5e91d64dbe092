"""The complete command line: help, exit codes, one-line errors, and fast imports."""

import shlex
from pathlib import Path

import click
import pytest
from tests.command_table import commands
from tests.unit.surfaces.cli.conftest import Shoal

from shoal.surfaces.cli import main

HELP_COLUMNS = 78


def test_help_lists_every_command(shoal: Shoal) -> None:
    ran = shoal("--help")
    assert ran.code == 0
    assert all(f"  {name} " in ran.out for name in main.COMMANDS)
    headings = [line.removesuffix(":") for line in ran.out.splitlines() if line.endswith(":")]
    assert headings == ["Options", *main.JOBS]


@pytest.mark.parametrize("name", sorted(main.COMMANDS))
def test_every_command_has_help(name: str, shoal: Shoal) -> None:
    ran = shoal(name, "--help")
    assert ran.code == 0
    assert ran.out.startswith(f"Usage: shoal {name}")


def every_listing() -> list[str]:
    context = click.Context(main.shoal)
    found: list[str] = []
    for name in main.COMMANDS:
        command = main.shoal.get_command(context, name)
        found += [f"{name} {inner}" for inner in getattr(command, "commands", {}) if inner == "list"]
    return found


@pytest.mark.parametrize("words", [*every_listing(), "threads show", "audit tail", "audit verify", "usage", "doctor"])
def test_every_listing_supports_json(words: str, shoal: Shoal) -> None:
    assert "--json" in shoal(*words.split(), "--help").out


@pytest.mark.parametrize("words", ["threads list", "init", "ask hi", "doctor", "backup x.tar.gz", "triggers list"])
@pytest.mark.parametrize("inside", ["", "/below"])
def test_every_command_reports_a_home_that_is_a_file(words: str, inside: str, shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = shoal(*words.split(), "--home", f"{tmp_path}/file{inside}")
    assert ran.code == 1
    assert "is not a directory" in ran.out + ran.err
    assert "does not exist yet" not in ran.out + ran.err


def test_the_home_option_may_follow_the_command(shoal: Shoal, tmp_path: Path) -> None:
    assert shoal("init", "--home", f"{tmp_path}/a").code == 0
    assert shoal("init", f"--home={tmp_path}/b").code == 0
    assert {path.name for path in tmp_path.iterdir()} >= {"a", "b"}
    assert "--home needs the path of a directory" in shoal("init", "--home").err
    assert "No such option" in shoal("init", "--bogus").err


def test_an_unknown_command_is_reported_with_the_nearest(shoal: Shoal) -> None:
    ran = shoal("permision")
    assert ran.code == 2
    assert "No command named 'permision'. Did you mean permissions?" in ran.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["frobnicate"], "No command named 'frobnicate'. Run 'shoal --help' to list all commands."),
        (["run", "--port", "abc"], "Invalid value for '--port': 'abc' is not a whole number."),
        (["import", "nosuch"], "'nosuch' is not one of 'openclaw', 'hermes', 'nanobot', 'openwebui'."),
        (["restore", "nosuch.tar.gz"], "No file or backup named nosuch.tar.gz."),
    ],
)
def test_a_typo_is_reported_in_plain_words(shoal: Shoal, words: list[str], told: str) -> None:
    ran = shoal(*words)
    assert ran.code in {1, 2}
    assert ran.err.startswith(f"shoal: {told}")


def every_command() -> list[str]:
    context = click.Context(main.shoal)
    found: list[str] = []
    for name in main.COMMANDS:
        command = main.shoal.get_command(context, name)
        inner = getattr(command, "commands", {})
        found += [f"{name} {one}" for one in inner] or [name]
    return found


@pytest.mark.parametrize("words", every_command())
def test_an_unknown_option_prints_one_line_with_help_and_exits_2(words: str, shoal: Shoal) -> None:
    for wrong in ("--nonsense", "--json-lines=x", *(() if takes_any(words) else ("a b c d e f g h i",))):
        ran = shoal(*words.split(), *wrong.split())
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert ran.err.startswith("shoal: ")
        assert "Usage:" not in ran.err
        assert "--help'." in ran.err or "Did you mean" in ran.err


def takes_any(words: str) -> bool:
    context, command = click.Context(main.shoal), None
    for word in words.split():
        group = command if isinstance(command, click.Group) else main.shoal
        command = group.get_command(context, word)
    return any(isinstance(one, click.Argument) and one.nargs < 0 for one in getattr(command, "params", ()))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("threads show", "Missing argument 'ID'. See 'shoal threads show --help'."),
        ("threads shwo", "No such command 'shwo'. Did you mean 'show'?"),
        ("threads list --jso", "No such option '--jso'. Did you mean '--json'?"),
        ("permissions check", "Pass either actions or --shell COMMAND."),
        (
            "run --port many",
            "Invalid value for '--port': 'many' is not a whole number. See 'shoal run --help'.",
        ),
    ],
)
def test_wrong_usage_shows_the_correct_form(words: str, said: str, shoal: Shoal) -> None:
    ran = shoal(*words.split())
    assert (ran.code, ran.out, ran.err) == (2, "", f"shoal: {said}\n")


def test_a_group_without_a_command_shows_its_usage(shoal: Shoal) -> None:
    ran = shoal("threads")
    assert ran.code == 2
    assert "Usage: shoal threads" in ran.err


def test_a_failure_prints_one_line_and_exits_1(shoal: Shoal, home: Path) -> None:
    ran = shoal("threads", "list")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"shoal: The home directory {home} does not exist. Create it with 'shoal init', or choose another with "
        "--home DIR.\n"
    )


def test_every_configuration_error_has_its_own_line(shoal: Shoal, home: Path) -> None:
    home.mkdir()
    (home / "shoal.toml").write_text("[turns]\nsteps_max = 'x'\n[modle]\n")
    ran = shoal("threads", "list")
    assert ran.code == 1
    assert [line.split(": ")[2].split(" ")[0] for line in ran.err.splitlines()] == ["turns.steps_max", "modle"]


def test_the_errors_of_a_group_are_reported_one_by_one(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shoal.kernel.errors import StoreFull

    def fail(*_: object, **__: object) -> None:
        inner = ExceptionGroup(
            "inner", [StoreFull("The disk is full. Free some."), OSError(5, "broken", "x"), OSError(28, "No space")]
        )
        raise ExceptionGroup("services", [inner])

    monkeypatch.setattr(main.shoal, "main", fail)
    ran = shoal("usage")
    assert ran.code == 1
    assert ran.err.splitlines() == [
        "shoal: The disk is full. Free some.",
        "shoal: x: broken. Check that the path exists and that you own it.",
        "shoal: .: No space. Free some space, then try again.",
    ]


EVERY = list(commands(main.shoal, ()))


@pytest.mark.parametrize(("words", "command"), EVERY, ids=[" ".join(words) or "shoal" for words, _ in EVERY])
def test_help_ends_with_an_example_that_parses(words: tuple[str, ...], command: click.Command) -> None:
    assert command.epilog is not None
    assert "\n" not in command.epilog
    line = command.epilog.removeprefix("Example: ")
    assert len(f"  {command.epilog}") <= HELP_COLUMNS
    *_, typed = line.split(" | ")
    program, *arguments = shlex.split(typed)
    assert program == "shoal"
    parsed = main.shoal.make_context("shoal", arguments)
    called: list[str] = []
    while isinstance(parsed.command, click.Group) and (left := [*parsed._protected_args, *parsed.args]):
        name, inner, rest = parsed.command.resolve_command(parsed, left)
        assert inner is not None, f"{line}: there is no {rest[:1]}"
        called.append(name or "")
        parsed = inner.make_context(name, rest, parent=parsed)
    assert tuple(called)[: len(words)] in (words, (*words[:1], "confirm"))
