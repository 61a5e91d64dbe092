"""`shoal setup` in a real terminal, and on a running Shoal."""

import asyncio
import os
import re
import socket
import subprocess
import sysconfig
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from tests.configured import configured
from tests.processes import PROGRAM
from tests.terminal import Terminal, transcript
from tests.tidy.source import ROOT
from tests.unit.surfaces.cli.test_setup import written
from tests.variables import VARIABLES

from shoal.config import load_config
from shoal.platforms.teams.settings import TeamsSettings
from shoal.platforms.telegram.settings import TelegramSettings
from shoal.surfaces.cli import setup_checks
from shoal.testing.model import FakeModel
from shoal.testing.model.fake import FakeSettings
from shoal.testing.model.script import Refusal
from shoal.testing.platforms.google_chat import PROJECT, FakeGoogleChat
from shoal.testing.platforms.teams import APP_ID, PASSWORD, FakeTeams
from shoal.testing.platforms.telegram import TOKEN, FakeTelegram

Start = Callable[..., Terminal]


KEYS_MAX = 200
"""Keystroke limit from the first question to a paired bot, including two wrong tokens: three minutes at one per
second.
"""


@pytest.fixture
def start(home: Path, tmp_path: Path) -> Generator[Start]:
    """Yield a function that runs `shoal --home HOME setup …` in a terminal, as a user without a systemd session."""
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environ |= {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin", "OLLAMA_HOST": "127.0.0.1:1"}
    (tmp_path / "systemctl").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "systemctl").chmod(0o755)
    opened: list[Terminal] = []

    def run(*arguments: str, **variables: str) -> Terminal:
        command = [PROGRAM, "--home", str(home), "setup", *arguments]
        if not any("web.port" in argument for argument in arguments):
            variables["SHOAL_WEB__PORT"] = "0"  # another Shoal may be using the default port
        opened.append(Terminal(command, {**environ, "TERM": "dumb", **variables}, tmp_path))
        return opened[-1]

    yield run
    for terminal in opened:
        terminal.kill()


@pytest.fixture
async def ending() -> AsyncGenerator[AsyncExitStack]:
    """Closes a test's servers even if the test fails. A server left open would fail a later test."""
    async with AsyncExitStack() as stack:
        yield stack


async def at(terminal: Terminal, part: str, typed: str | None = None) -> str:
    """Wait for a text on the screen, then type a line if one is given. Waits in a thread, so the fakes keep running."""
    shown = await asyncio.to_thread(terminal.sees, part)
    if typed is not None:
        terminal.types(typed)
    return shown


@asynccontextmanager
async def telegram() -> AsyncGenerator[tuple[FakeTelegram, str]]:
    fake = FakeTelegram()
    fake.add_chat(7)
    await fake.start()
    try:
        yield fake, f"platforms.telegram.api_base={fake.server.address}"
    finally:
        await fake.stop()


async def test_setup_leads_from_an_empty_home_to_a_paired_bot(start: Start, home: Path) -> None:
    async with telegram() as (fake, option):
        terminal = start("--set", option)
        await at(terminal, "Number [1]: ", "demo")
        await at(terminal, "Number [1]: ", "1")
        await at(terminal, "Enter goes back): ", "xoxb-12345")
        await at(terminal, "That is a Slack bot token, not a Telegram bot token. Try again.")
        await at(terminal, "Enter goes back): ", "123456:AAAnotherBotsTokenThatIsWrong")
        await at(terminal, "Telegram rejected the token")
        await at(terminal, "Enter goes back): ", TOKEN)
        await at(terminal, "a direct message")
        await fake.says(7, "/start")
        code = (await fake.sees(7, "Your code is ")).text.split("Your code is ")[1].split(".")[0]
        await at(terminal, "CODE'): ", "22222222")
        await at(terminal, "This is not the code in the chat.")
        await at(terminal, "CODE'): ", code.lower())
        await at(terminal, "You own the bot on Telegram")
        await at(terminal, "(- for none) [-]: ", "8")
        assert "You are now my owner" in (await fake.sees(7, "now my owner")).text
        assert await asyncio.to_thread(terminal.ends) == 0
    assert TOKEN not in terminal.screen
    assert terminal.lacks(transcript(ROOT / "docs/setup.md", 1), home, PROGRAM) == []
    assert sum(len(line) + 1 for line in terminal.typed) <= KEYS_MAX
    assert written(home)["platforms"]["telegram"] == {
        "api_base": option.partition("=")[2], "token": {"file": "secrets/platforms.telegram.token"}, "owner": "7",
    }  # fmt: skip


async def test_a_running_shoal_adopts_model_and_bot_and_repeats_only_wrong_answers(
    start: Start, home: Path, tmp_path: Path, ending: AsyncExitStack
) -> None:
    model = FakeModel(settings=FakeSettings(models=("one", "two")))
    ending.push_async_callback(model.stop)
    address = await model.start("127.0.0.1", 0)
    fake, option = await ending.enter_async_context(telegram())
    home.mkdir()
    (home / "shoal.toml").write_text(
        f'[platforms.telegram]\nenabled = false\napi_base = "{option.partition("=")[2]}"\n', "utf-8"
    )
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES} | {"HOME": str(tmp_path)}
    command = (PROGRAM, "--home", str(home), "run", "--port", "0")
    server = await asyncio.create_subprocess_exec(*command, env=environ, stdout=PIPE, stderr=DEVNULL)
    ending.push_async_callback(server.wait)
    ending.callback(server.terminate)
    assert server.stdout is not None
    assert (await server.stdout.readline()).startswith(b"ready ")
    terminal = start()
    await at(terminal, "Changes to models and chats take effect immediately.")
    await at(terminal, "Number [1]: ", "42")
    await at(terminal, "Number [1]: ", "6")
    await at(terminal, "8080/v1]: ", "not an address")
    await at(terminal, "8080/v1]: ", f"{address}/v1")
    await at(terminal, "goes back): ", "sk-a-key-that-is-not-shown")
    await at(terminal, "Model (a number, a name, or part of a name) [one]: ", "tw")
    await at(terminal, "mine/two answers")
    await at(terminal, "Number [1]: ", "1")
    await at(terminal, "Enter goes back): ", "123456:AAAnotherBotsTokenThatIsWrong")
    await at(terminal, "Telegram rejected the token")
    await at(terminal, "Enter goes back): ", TOKEN)
    await at(terminal, "The bot answers with a code. Enter the code here.")
    await fake.says(7, "/start")
    code = (await fake.sees(7, "shoal pair ")).text.split("shoal pair ")[1][:8]
    await at(terminal, "CODE'): ", "short")
    await at(terminal, "A pairing code has 8 letters and digits")
    await at(terminal, "CODE'): ", "22222222")
    await at(terminal, "This code is unknown")
    await at(terminal, "CODE'): ", code)
    await at(terminal, "You own the bot on Telegram")
    assert await asyncio.to_thread(terminal.ends) == 0
    assert terminal.screen.count("Telegram is connected") == 1
    assert TOKEN not in terminal.screen
    assert "sk-a-key" not in terminal.screen
    assert written(home)["platforms"]["telegram"]["owner"] == "7"  # pyrefly: ignore[bad-index]


async def test_an_unknown_person_who_writes_first_does_not_block_the_owner(start: Start, home: Path) -> None:
    async with telegram() as (fake, option):
        fake.add_chat(8)
        terminal = start("--set", option)
        await at(terminal, "Number [1]: ", "demo")
        await at(terminal, "Number [1]: ", "telegram")
        await at(terminal, "Enter goes back): ", "123456:AAAnotherBotsTokenThatIsWrong")
        shown = await at(terminal, "Enter goes back): ", TOKEN)
        assert ("restart" in shown, "Number [1]" in shown) == (False, False), "only the token question is repeated"
        await at(terminal, "a direct message")
        await fake.says(8, "hello from a stranger", user=8)
        other = (await fake.sees(8, "Your code is ")).text.split("Your code is ")[1].split(".")[0]
        await at(terminal, "CODE'): ", "22222222")
        await at(terminal, "If that chat is not yours, write to your bot to get your own code.")
        await fake.says(7, "/start")
        code = (await fake.sees(7, "Your code is ")).text.split("Your code is ")[1].split(".")[0]
        assert code != other
        await at(terminal, "CODE'): ", code)
        await at(terminal, "You own the bot on Telegram")
        await at(terminal, "(- for none) [-]: ", "25:00")
        await at(terminal, "'25:00' is not a time of day. Use a time such as 8, 8:00 or 20:30.")
        await at(terminal, "(- for none) [-]: ", "8")
        await at(terminal, "You will get a brief in telegram:7:")
        assert await asyncio.to_thread(terminal.ends) == 0
    assert written(home)["platforms"]["telegram"]["owner"] == "7"  # pyrefly: ignore[bad-index]


async def test_teams_setup_shows_the_messaging_endpoint(start: Start, home: Path, ending: AsyncExitStack) -> None:
    fake = FakeTeams()
    await fake.start()
    ending.push_async_callback(fake.stop)
    address = fake.server.address
    terminal = start(
        "--set",
        f"platforms.teams.login_url={address}/login",
        "--set",
        f"platforms.teams.service_url={fake.service_url}",
    )
    await at(terminal, "Number [1]: ", "demo")
    await at(terminal, "Number [1]: ", "teams")
    for app_id, tenant, password, public_url, said in (
        (APP_ID, "tenant-1", PASSWORD, "bot.example.org", "web.public_url"),
        ("", "", "wrong", "https://bot.example.org", "Teams"),  # an empty line keeps the earlier input
        ("", "", PASSWORD, "", "Teams accepts the credentials."),
    ):
        await at(terminal, "Microsoft App ID", app_id)
        await at(terminal, "App Tenant ID", tenant)
        await at(terminal, "Client secret", password)
        await at(terminal, "Public URL of this server", public_url)
        await at(terminal, said)
    await at(terminal, "https://bot.example.org/platforms/teams")
    await at(terminal, "Your object id", "aad-ada")
    assert await asyncio.to_thread(terminal.ends) == 0, terminal.screen
    account = configured(load_config(home, {}), TeamsSettings)[0]
    assert (account.app_id, account.tenant, account.owner) == (APP_ID, "tenant-1", "aad-ada")
    assert account.app_password.reveal() == PASSWORD
    assert PASSWORD not in terminal.screen


async def test_google_chat_by_pub_sub_pairs_its_owner(
    start: Start, home: Path, tmp_path: Path, ending: AsyncExitStack
) -> None:
    fake = FakeGoogleChat()
    fake.pulls = True
    fake.add("dm", "DIRECT_MESSAGE")
    await fake.start()
    ending.push_async_callback(fake.stop)
    (tmp_path / "key.json").write_bytes(fake.key_file())
    bases = [f"platforms.google_chat.{key}={fake.server.address}" for key in ("api_base", "pubsub_base")]
    terminal = start("--set", bases[0], "--set", bases[1])
    await at(terminal, "Number [1]: ", "demo")
    (tmp_path / "notes.json").write_text("no key")
    await at(terminal, "Number [1]: ", "google_chat")
    for file, project, subscription, said in (
        ("notes.json", PROJECT, fake.settings()["subscription"], "is not a service account key"),
        ("key.json", "", "", "a direct message"),  # an empty line keeps the earlier input
    ):
        await at(terminal, "ervice account key file (JSON)", str(tmp_path / file))
        await at(terminal, "Authentication audience", project)
        await at(terminal, "Pub/Sub subscription", subscription)
        await at(terminal, said)
    await fake.says("dm", "hello")
    code = (await fake.sees("dm", "Your code is ")).text.split("Your code is ")[1].split(".")[0]
    await at(terminal, "CODE'): ", code)
    await at(terminal, "(- for none) [-]: ", "")
    assert await asyncio.to_thread(terminal.ends) == 0, terminal.screen
    assert load_config(home, {}).platforms.of("google_chat")[0].owner == "1001"


async def test_setup_resumes_where_it_was_left(start: Start, home: Path) -> None:
    async with telegram() as (fake, option):
        terminal = start("--set", option)
        await at(terminal, "Number [1]: ", "demo")
        await at(terminal, "Number [1]: ", "telegram")
        await at(terminal, "Enter goes back): ", TOKEN)
        await at(terminal, "a direct message")
        terminal.presses(b"\x03")
        await at(terminal, "Setup stopped. The settings that you completed are saved.")
        shown = await at(terminal, f"Run '{PROGRAM} setup' to continue where you left off.")
        assert await asyncio.to_thread(terminal.ends) == 130
        assert "Nothing was changed" not in shown + terminal.screen
        again = start("model")
        await at(again, "Number [1]: ", "demo")
        await at(again, "a direct message")
        await fake.says(7, "hello")
        code = (await fake.sees(7, "Your code is ")).text.split("Your code is ")[1].split(".")[0]
        await at(again, "CODE'): ", code)
        await at(again, "(- for none) [-]: ", "")
        assert await asyncio.to_thread(again.ends) == 0
        last = start()
        await at(last, "Telegram is connected.")
        await at(last, "Next: ")
        assert await asyncio.to_thread(last.ends) == 0
        assert last.typed == [], "known answers are not asked for again"
    assert written(home)["platforms"]["telegram"]["owner"] == "7"  # pyrefly: ignore[bad-index]


async def test_a_disabled_account_is_enabled_with_its_token(start: Start, home: Path) -> None:
    async with telegram() as (fake, option):
        (home / "secrets").mkdir(parents=True)
        (home / "secrets/t").write_text(TOKEN)
        (home / "shoal.toml").write_text(
            f"[model]\nname = 'demo'\n[platforms.telegram]\nenabled = false  # imported\nallow = ['7', '8']\n"
            f"api_base = '{option.partition('=')[2]}'\ntoken = {{ file = 'secrets/t' }}\n"
        )
        terminal = start()
        await at(terminal, "Number [1]: ", "telegram")
        await at(terminal, "a direct message")
        await fake.says(7, "hello")
        code = (await fake.sees(7, "Your code is ")).text.split("Your code is ")[1].split(".")[0]
        await at(terminal, "CODE'): ", code)
        await at(terminal, "(- for none) [-]: ", "")
        assert await asyncio.to_thread(terminal.ends) == 0
    account = configured(load_config(home, {}), TelegramSettings)[0]
    assert (account.enabled, account.owner, account.allow) == (True, "7", ("7", "8"))


@pytest.mark.parametrize("no_colour", [True, False])
async def test_questions_respect_the_color_settings(start: Start, no_colour: bool) -> None:
    terminal = start(TERM="xterm-256color", **({"NO_COLOR": "1"} if no_colour else {}))
    await at(terminal, "Number [1]:")
    terminal.presses(b"\x03")
    await at(terminal, "Setup stopped. ")
    assert await asyncio.to_thread(terminal.ends) == 130
    assert bool(re.search(r"\x1b\[(?:[0-9;]*;)?[39]\d(?:;[0-9;]*)?m", terminal.screen)) is not no_colour


async def test_the_end_of_input_stops_the_setup(start: Start) -> None:
    terminal = start()
    await at(terminal, "Number [1]: ")
    terminal.presses(b"\x04")
    await at(terminal, "Setup stopped. ")
    assert await asyncio.to_thread(terminal.ends) == 130


async def test_an_exhausted_account_is_reported_before_it_is_saved(
    start: Start, home: Path, ending: AsyncExitStack
) -> None:
    used_up = Refusal(429, "You exceeded your current quota.", "insufficient_quota")
    model = FakeModel(script=lambda _: used_up, settings=FakeSettings(models=("fake-1",)))
    address = await model.start("127.0.0.1", 0)
    ending.push_async_callback(model.stop)
    terminal = start()
    await at(terminal, "Number [1]: ", "server")
    await at(terminal, "URL (- goes back) [http://127.0.0.1:8080/v1]: ", f"{address}/v1")
    await at(terminal, "Key, if required", "some-key")
    await at(terminal, "Model [fake-1]: ", "")
    await at(terminal, "has no credit or quota left")
    await at(terminal, "Use this model anyway? [y/N]: ", "n")
    await at(terminal, "Choose another model from this provider? [Y/n]: ", "n")
    await at(terminal, "Number [1]: ", "demo")
    await at(terminal, "Number [1]: ", "none")
    assert await asyncio.to_thread(terminal.ends) == 0
    assert not (home / "secrets").exists()


async def test_a_wrong_answer_repeats_the_question(start: Start, tmp_path: Path) -> None:
    terminal = start("--set", "web.port=0")
    await at(terminal, "Number [1]: ", "local")
    if PathFinder.find_spec("xllamacpp", [sysconfig.get_path("platlib")]) is None:
        await at(terminal, "Install it now", "n")
    else:
        await at(terminal, "Path of the GGUF file", str(tmp_path / "nothing.gguf"))
        await at(terminal, ": No such file or directory.")
        await at(terminal, "Path of the GGUF file", str(tmp_path))
        await at(terminal, ": Is a directory.")
        await at(terminal, "Path of the GGUF file", "-")
    await at(terminal, "Number [1]: ", "sk-ant-api03-pasted-at-the-wrong-place")
    await at(terminal, "This looks like an Anthropic key, which does not belong here.")
    await at(terminal, "Number [1]: ", "server")
    for answer, said in (
        ("http://[::1", "http://[::1 is not a URL. It must begin with"),
        ("not a url", "not a url is not a URL."),
        ("a1b2c3d4e5f6a1b2c3d4e5f6", "That is not a URL."),
    ):
        await at(terminal, "URL", answer)
        await at(terminal, said)
    await at(terminal, "URL", "http://127.0.0.1:1/v1")
    await at(terminal, "Key, if required", "")
    await at(terminal, "URL (- goes back) [http://127.0.0.1:1/v1]: ", "-")
    await at(terminal, "Number [1]: ", "demo")
    await at(terminal, "Number [1]: ", "slack")
    await at(terminal, "Bot token", "")
    await at(terminal, "Number [1]: ", "none")
    assert await asyncio.to_thread(terminal.ends) == 0
    assert "App-level token" not in terminal.screen


async def test_an_unreachable_service_does_not_ask_for_another_key(start: Start) -> None:
    terminal = start("--set", "providers.openai.base_url=http://127.0.0.1:1/v1")
    await at(terminal, "Number [1]: ", "key")
    await at(terminal, "or type part of a name.")
    await at(terminal, "Number [1]: ", "openai, w")
    await at(terminal, "API key for openai (not shown; Enter goes back): ", "sk-0123456789abcdef0123456789abcdef")
    for again in ("", "n"):
        await at(terminal, "cannot be reached")
        await at(terminal, "Try again with the same key? [Y/n]: ", again)
    await at(terminal, "API key for openai (not shown; Enter goes back): ", "")
    await at(terminal, "Number [1]: ")
    terminal.presses(b"\x03")
    assert await asyncio.to_thread(terminal.ends) == 130


@pytest.mark.parametrize("term", ["xterm", "screen"])
async def test_a_key_is_never_shown_even_if_entered_elsewhere(start: Start, term: str) -> None:
    pasted = ("sk-ant-api03-0123456789abcdef", "gsk0123456789abcdefghijk", "123456:AAAnotherBotsTokenThatIsWrong")
    terminal = start(TERM=term)
    for key in pasted:
        await at(terminal, "Number [1]:", key)
    await at(terminal, "Number [1]:", "server")
    await at(terminal, "8080/v1]:", pasted[1])
    await at(terminal, "That is not a URL")
    await at(terminal, "8080/v1]:", "http://127.0.0.1:1/v1")
    await at(terminal, "Enter for none", pasted[0])
    await at(terminal, "[http://127.0.0.1:1/v1]:", "-")
    await at(terminal, "Number [1]:")
    terminal.presses(b"\x03")
    assert await asyncio.to_thread(terminal.ends) == 130
    assert not [key for key in pasted if key[8:] in terminal.screen]


async def test_a_model_is_chosen_by_number_name_or_part_of_the_name(
    start: Start, home: Path, ending: AsyncExitStack
) -> None:
    models = (*(f"other-{number}" for number in range(30)), "fish-small", "fish-large")
    model = FakeModel("Hello.", settings=FakeSettings(models=models))
    address = await model.start("127.0.0.1", 0)
    ending.push_async_callback(model.stop)
    terminal = start()
    await at(terminal, "Number [1]: ", "server")
    await at(terminal, "8080/v1]: ", f"{address}/v1")
    await at(terminal, "Enter for none", "")
    await at(terminal, "and 17 more: type part of a name, or ? for all")
    await at(terminal, "[other-0]: ", "FISH")
    await at(terminal, " 1  fish-small")
    await at(terminal, " 2  fish-large")
    await at(terminal, "[other-0]: ", "99")
    await at(terminal, "99 is not in the list. Use it anyway? [y/N]: ", "n")
    await at(terminal, "[other-0]: ", "fish")
    await at(terminal, " 2  fish-large")
    await at(terminal, "[other-0]: ", "2")
    await at(terminal, "mine/fish-large answers")
    await at(terminal, "Number [1]: ", "none")
    assert await asyncio.to_thread(terminal.ends) == 0
    assert written(home)["model"]["name"] == "mine/fish-large"


async def test_an_invalid_port_repeats_the_question(start: Start) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        terminal = start("--set", f"web.port={other.getsockname()[1]}")
        await at(terminal, "Port of the page", "abc")
        await at(
            terminal, ("The port must be a number up to 65535. With 0, the system chooses a free port at each start.")
        )
        await at(terminal, "Port of the page", "0")
        await at(terminal, "Number [1]: ")


async def test_another_directory_is_accepted_only_if_valid(start: Start, home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "thesis.tex").write_text("")
    terminal = start()
    await at(terminal, "Directory: ", str(tmp_path / "systemctl"))
    assert "export" not in await at(terminal, "is not a directory. Choose a different location.")
    await at(terminal, "Directory: ", str(tmp_path / "fresh"))
    await at(terminal, f"export SHOAL_HOME={tmp_path / 'fresh'}")


def test_the_unit_starts_this_shoal_with_this_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    done = subprocess.CompletedProcess((), 0, "", "")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: done)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if "/" not in name else name)
    monkeypatch.setattr("sys.argv", ["/opt/my apps/shoal"])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    service = setup_checks.login_service(Path("/srv/100% mine"))
    assert service is not None
    assert service.file == tmp_path / "systemd/user/shoal-100-mine.service"
    line = next(line for line in service.content.decode().splitlines() if line.startswith("ExecStart="))
    assert line == 'ExecStart="/opt/my apps/shoal" --home "/srv/100%% mine" run'
    setup_checks.start_at_login(service)
    assert service.file.read_bytes() == service.content
    plain = tmp_path / "shoal-check.service"
    plain.write_text(service.content.decode().replace(line, "ExecStart=/bin/true"))
    if os.path.exists("/usr/bin/systemd-analyze"):
        checked = subprocess.run(
            ["/usr/bin/systemd-analyze", "verify", str(plain)], capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
