"""The table of chat commands: names, numbers, and parsing."""

from datetime import UTC, datetime

import pytest

from shoal.kernel.commands import EXTENSION_NUMBERS, CommandSpec, CommandTable
from shoal.kernel.errors import ConfigError
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author, Prompt


def test_an_added_commands_number_depends_only_on_its_name() -> None:
    alone, together = CommandTable(), CommandTable()
    together.add(CommandSpec("chart", "a chart"))
    for table in (alone, together):
        table.add(CommandSpec("dice", "roll dice"))
    dice = alone.get("dice")
    assert dice is not None
    assert dice.number in EXTENSION_NUMBERS
    assert together.numbered(dice.number) == together.get("dice") == dice


@pytest.mark.parametrize("name", ["help", "clear", "start"])
def test_a_duplicate_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"Two commands are named /{name}"):
        CommandTable().add(CommandSpec(name, "mine"))


def test_a_duplicate_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="/help and /dice have the same number 1"):
        CommandTable().add(CommandSpec("dice", "roll dice", number=1))


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/stop all ", ("stop", "all")),
        ("/STOP", ("stop", "")),
        ("/clear", ("new", "")),
        ("/start", ("start", "")),
        ("/dice 6", ("dice", "6")),
        ("/dance", None),
        ("stop", None),
        ("", None),
    ],
)
def test_text_that_names_a_command_is_parsed_as_a_command(text: str, command: tuple[str, str] | None) -> None:
    table = CommandTable()
    table.add(CommandSpec("dice", "roll dice"))
    parsed = table.parse(text)
    assert (parsed and (parsed.name, parsed.argument)) == command


@pytest.mark.parametrize(
    ("text", "slashed"),
    [("!stop all", "/stop all"), ("!clear", "/clear"), ("!important", "!important"), ("stop!", "stop!"), ("!", "!")],
)
def test_a_leading_bang_is_read_as_a_slash(text: str, slashed: str) -> None:
    assert CommandTable().with_slash(text) == slashed


def test_a_command_request_keeps_the_id_of_its_message() -> None:
    thread, at = ThreadId("fake:harbour:1"), datetime(2026, 1, 5, tzinfo=UTC)
    prompt = Prompt(thread, "k", "/stop all", Author("ada", trusted=True), at, direct=True, message_id="m")
    request = CommandTable().request(prompt)
    assert request is not None
    assert (request.name, request.argument, request.key, request.message_id, request.direct) == (
        "stop", "all", "k", "m", True,
    )  # fmt: skip
