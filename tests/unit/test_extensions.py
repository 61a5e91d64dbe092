"""Extensions: found by entry point, imported on first use, and distinguishable when two packages collide."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shoal.extensions import extension_commands, extension_hooks, extension_tools, extensions, load_extension
from shoal.kernel.commands import CommandRequest
from shoal.kernel.errors import ConfigError, ExtensionFailed
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author
from shoal.kernel.settings import ToolsSettings

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    def put(package: str, entries: str, code: str = "") -> None:
        record = tmp_path / f"{package}-1.dist-info"
        record.mkdir()
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (record / "entry_points.txt").write_text(entries)
        (tmp_path / f"{package}.py").write_text(code)

    monkeypatch.syspath_prepend(str(tmp_path))
    return put


def test_extensions_are_loaded_on_first_use(install: Install) -> None:
    install("weather", "[shoal.tools]\nweather = weather:TOOL\n", "TOOL = 'sunny'\n")
    assert list(extensions("shoal.tools")) == ["weather"]
    assert extensions("shoal.sandboxes") == {}
    assert load_extension("shoal.tools", "weather") == "sunny"


def test_an_unknown_name_is_reported_with_the_known_ones(install: Install) -> None:
    install("weather2", "[shoal.tools]\nweather = weather2:TOOL\n")
    with pytest.raises(
        ConfigError,
        match=r"No installed package provides 'wether' in shoal\.tools \(available: "
        r"weather\)\.",
    ):
        load_extension("shoal.tools", "wether")


@pytest.mark.parametrize("code", ["", "import nothing_of_this_name\n"])
def test_a_package_that_cannot_be_imported_is_named(install: Install, code: str) -> None:
    install("broken", "[shoal.tools]\nbroken = broken:TOOL\n", code)
    with pytest.raises(ConfigError, match="Shoal cannot import 'broken' from the package broken: "):
        load_extension("shoal.tools", "broken")


def test_two_packages_with_one_name_are_reported(install: Install) -> None:
    install("one", "[shoal.tools]\nsame = one:TOOL\n")
    install("two", "[shoal.tools]\nsame = two:TOOL\n")
    with pytest.raises(ConfigError, match=r"Two packages provide 'same' in shoal\.tools: "):
        extensions("shoal.tools")


def test_hardware_tools_exist_only_with_the_setting(install: Install) -> None:
    install("lamps", "[shoal.tools.hardware]\nlamp = lamps:TOOL\n", "TOOL = 'lamp'\n")
    assert "lamp" not in extension_tools(ToolsSettings())
    assert "lamp" in extension_tools(ToolsSettings(hardware=True))


def test_missing_hardware_tools_say_how_to_add_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match=r"tools\.hardware is on, but its package is missing\. Run: .*shoal-hardware"):
        extension_tools(ToolsSettings(hardware=True))


COMMANDS = """
import shoal

@shoal.chat_command("roll a die")
async def dice(asked: shoal.CommandRequest) -> str:
    return str(6 // int(asked.argument))

HOOKS = shoal.Hooks()
"""


def request(argument: str) -> CommandRequest:
    thread, at = ThreadId("fake:harbour:1"), datetime(2026, 1, 5, tzinfo=UTC)
    return CommandRequest(thread, Author("ada", trusted=True), "dice", argument, "k", at)


async def test_an_exception_in_a_command_is_reported_with_its_name(install: Install) -> None:
    install("games", "[shoal.commands]\ndice = games:dice\n", COMMANDS)
    (command,) = extension_commands()
    assert await command.answer(request("2")) == "3"
    with pytest.raises(ExtensionFailed, match="/dice failed: ZeroDivisionError: "):
        await command.answer(request("0"))


def test_an_invalid_command_or_hook_is_reported(install: Install) -> None:
    install("odd", "[shoal.commands]\ndice = odd:HOOKS\n[shoal.hooks]\ndice = odd:dice\n", COMMANDS)
    with pytest.raises(
        ConfigError, match=r"'dice' in shoal\.commands is not a function decorated with @shoal\.chat_command\."
    ):
        extension_commands()
    with pytest.raises(ConfigError, match=r"'dice' in shoal\.hooks is not a shoal\.Hooks\."):
        extension_hooks()


def test_hooks_are_called_in_the_order_of_their_names(install: Install) -> None:
    install("hooked", "[shoal.hooks]\nb = hooked:HOOKS\na = hooked:HOOKS\n", COMMANDS)
    assert list(extension_hooks()) == ["a", "b"]
