"""`shoal setup` asks for what is missing, tries it at once, and writes what works; nothing is asked twice."""

import asyncio
import json
import os
import re
import socket
import stat
import subprocess
import sysconfig
import tomllib
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from tests.configured import configured
from tests.terminal import Terminal, transcript
from tests.tidy.source import ROOT
from tests.unit.surfaces.cli.conftest import PROGRAM, VARIABLES, Shoal

from shoal.config import load_config
from shoal.platforms.teams.settings import TeamsSettings
from shoal.platforms.telegram.settings import TelegramSettings
from shoal.setup.choices import mistaken
from shoal.surfaces.cli import setup_checks
from shoal.surfaces.cli.setup_checks import is_free, not_usable
from shoal.testing.model import FakeModel
from shoal.testing.model.fake import FakeSettings
from shoal.testing.model.script import Refusal
from shoal.testing.platforms.google_chat import PROJECT, FakeGoogleChat
from shoal.testing.platforms.teams import APP_ID, PASSWORD, FakeTeams
from shoal.testing.platforms.telegram import TOKEN, FakeTelegram

Start = Callable[..., Terminal]
KEYS_MAX = 200
"""Keys to press from the first question to a paired bot, with two wrong tokens: three minutes, a key a second."""


@pytest.fixture
def start(home: Path, tmp_path: Path) -> Generator[Start]:
    """Run `shoal --home HOME setup …` at a terminal, as a user without any session of systemd's."""
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environ |= {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin", "OLLAMA_HOST": "127.0.0.1:1"}
    (tmp_path / "systemctl").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "systemctl").chmod(0o755)
    opened: list[Terminal] = []

    def run(*arguments: str, **variables: str) -> Terminal:
        command = [PROGRAM, "--home", str(home), "setup", *arguments]
        opened.append(Terminal(command, {**environ, "TERM": "dumb", **variables}, tmp_path))
        return opened[-1]

    yield run
    for terminal in opened:
        terminal.kill()


@pytest.fixture
async def ending() -> AsyncGenerator[AsyncExitStack]:
    """What happens at the end of a test, also of one that fails: a server left open would fail a later test."""
    async with AsyncExitStack() as stack:
        yield stack


async def at(terminal: Terminal, part: str, typed: str | None = None) -> str:
    """Wait for a text on the screen, then type a line if one is given; the fakes go on meanwhile."""
    shown = await asyncio.to_thread(terminal.sees, part)
    if typed is not None:
        terminal.types(typed)
    return shown


@asynccontextmanager
async def telegram() -> AsyncGenerator[tuple[FakeTelegram, str]]:
    """A bot that Ada (7) may write to, and the option that leads there."""
    fake = FakeTelegram()
    fake.add_chat(7)
    await fake.start()
    try:
        yield fake, f"platforms.telegram.api_base={fake.server.address}"
    finally:
        await fake.stop()


def written(home: Path) -> dict[str, dict[str, object]]:
    return tomllib.loads((home / "shoal.toml").read_text())


# ---- without a terminal ----


def test_a_key_is_tried_and_kept_in_a_file_of_its_own(
    shoal: Shoal, home: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "right")
    address = f"providers.openai.base_url={model}/v1"
    ran = shoal("setup", "--provider", "openai", "--key", "env:MY_KEY", "--model", "fake-1", "--set", address)
    assert ran.code == 0, ran.out + ran.err
    file = home / "secrets" / "providers.openai.api_key"
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("right\n", 0o600)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "right" not in ran.out + (home / "shoal.toml").read_text()
    assert load_config(home, {}).providers["openai"].api_key.reveal() == "right"
    assert load_config(home, {}).model.name == "openai/fake-1"
    assert "openai/fake-1 answers: " in ran.out
    assert f"wrote    {file}" in ran.out
    assert ran.out.splitlines()[-1].startswith("Next: 'shoal run' starts it")


def test_comments_and_all_else_of_the_file_stay(shoal: Shoal, home: Path) -> None:
    shoal("init")
    before = (home / "shoal.toml").read_text()
    assert shoal("setup", "--set", "web.port=0", "--set", "budget.usd_per_day=2.5").code == 0
    after = (home / "shoal.toml").read_text()
    assert [line for line in before.splitlines() if line not in after.splitlines()] == []
    assert (written(home)["web"], written(home)["budget"]) == ({"port": 0}, {"usd_per_day": 2.5})


def test_a_file_whose_lines_end_as_on_windows_is_changed_too(shoal: Shoal, home: Path) -> None:
    text = "[web]\r\nport = 1\r\n\r\n[model]\r\nname = 'demo'\r\n"
    home.mkdir()
    (home / "shoal.toml").write_bytes(text.encode())
    ran = shoal("setup", "--set", "web.port=8500")
    assert ran.code == 0, ran.err
    assert written(home) == {"web": {"port": 8500}, "model": {"name": "demo"}}
    assert b"\r" not in (home / "shoal.toml").read_bytes(), "its lines end in two ways"


def test_a_wrong_key_is_said_and_nothing_is_written(shoal: Shoal, home: Path, model: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("wrong")
    address = f"providers.openai.base_url={model}/v1"
    ran = shoal("setup", "--provider", "openai", "--key", f"file:{tmp_path / 'key'}", "--set", address)
    assert ran.code == 1
    assert "refused the key" in ran.out
    assert not (home / "secrets").exists()
    assert "sandbox " in ran.out, "the other steps go on"


def test_a_key_of_somebody_else_is_not_even_tried(shoal: Shoal) -> None:
    ran = shoal("setup", "--provider", "anthropic", "--key", "-", stdin="123456789:AAFakeTokenForTestsOnly\n")
    assert ran.code == 1
    assert "That is a Telegram bot token, not an Anthropic key." in ran.out


def test_a_wrong_setting_is_refused_with_what_is_allowed(shoal: Shoal, home: Path) -> None:
    ran = shoal("setup", "--set", "web.prot=1")
    assert ran.code == 1
    assert "web.prot is not a known key; did you mean port?" in ran.err
    assert "prot" not in (home / "shoal.toml").read_text()


def test_lists_and_wrong_values_are_read_as_the_file_would_be(shoal: Shoal, home: Path) -> None:
    assert shoal("setup", "--set", "web.allowed_origins=a.example,b.example").code == 0
    assert load_config(home, {}).web.allowed_origins == ("a.example", "b.example")
    ran = shoal("setup", "--set", "web.port=abc")
    assert (ran.code, "web.port is" in ran.err) == (1, True)
    ran = shoal("setup", "--platform", "matrix")
    assert (ran.code, "--set platforms.matrix.homeserver=VALUE is missing" in ran.out) == (1, True)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("openclaw.json", "belongs to another product (openclaw)"),
        ("webui.db", "'shoal import openwebui"),
        ("thesis.tex", "holds other files (thesis.tex)"),
    ],
)
def test_a_directory_of_something_else_is_left_alone(shoal: Shoal, home: Path, file: str, said: str) -> None:
    home.mkdir()
    (home / file).write_text("{}")
    ran = shoal("setup")
    assert ran.code == 1
    assert said in ran.out
    assert [one.name for one in home.iterdir()] == [file]


def test_a_home_that_is_half_anothers_is_left_alone_too(tmp_path: Path) -> None:
    (tmp_path / "openclaw.json").write_text("{}")
    (tmp_path / "shoal.toml").write_text("")
    assert "belongs to another product" in not_usable(tmp_path)


def test_a_place_that_cannot_be_a_home_is_said(shoal: Shoal, home: Path) -> None:
    home.write_text("a file")
    ran = shoal("setup")
    assert ran.code == 1
    assert f"{home} is a file. Choose another directory" in ran.out
    home.unlink()
    (home.parent / "file").write_text("")
    assert not_usable(home.parent / "file/home") == f"{home.parent / 'file'} is a file. Choose another directory."


def test_a_port_in_use_is_said_and_not_written(shoal: Shoal, home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert not is_free("127.0.0.1", port)
        ran = shoal("setup", "--set", f"web.port={port}")
    assert f"Port {port} of 127.0.0.1 is used by another program." in ran.out
    assert ran.code == 1
    assert str(port) not in (home / "shoal.toml").read_text()


def test_a_shoal_that_runs_has_to_be_stopped(shoal: Shoal, home: Path) -> None:
    from shoal.store.lock import HomeLock

    shoal("init")
    lock = HomeLock(home / "shoal.lock")
    lock.acquire()
    try:
        ran = shoal("setup")
    finally:
        lock.release()
    assert (ran.code, "A Shoal runs on" in ran.err) == (1, True)


@pytest.mark.parametrize(
    ("value", "wanted", "said"),
    [
        ("sk-ant-api03-x", "an OpenAI key", "That is an Anthropic key, not an OpenAI key."),
        ("xoxb-1-2", "a Telegram bot token", "That is a Slack bot token, not a Telegram bot token."),
        ("xapp-1-2", "a Slack bot token", "That is a Slack app-level token, not a Slack bot token."),
        ("sk-proj-x", "an OpenAI key", ""),
        ("something new", "an OpenAI key", ""),
        (TOKEN, "a Telegram bot token", ""),
    ],
)
def test_only_what_is_plainly_something_else_is_refused(value: str, wanted: str, said: str) -> None:
    assert mistaken(value, wanted) == said


# ---- at a terminal ----


async def test_a_person_gets_from_nothing_to_a_paired_bot(start: Start, home: Path) -> None:
    async with telegram() as (fake, option):
        terminal = start("--set", option)
        await at(terminal, "Number [1]: ", "demo")
        await at(terminal, "Number [1]: ", "1")
        await at(terminal, "Enter goes back): ", "xoxb-12345")
        await at(terminal, "That is a Slack bot token, not a Telegram bot token. Try again.")
        await at(terminal, "Enter goes back): ", "123456:AAAnotherBotsTokenThatIsWrong")
        await at(terminal, "Telegram refused the token")
        await at(terminal, "Enter goes back): ", TOKEN)
        await at(terminal, "directly and not in a group")
        await fake.says(7, "/start")
        code = (await fake.sees(7, "Your code is ")).text.split("Your code is ")[1].split(".")[0]
        await at(terminal, "CODE'): ", "22222222")
        await at(terminal, "That is not the code in the chat.")
        await at(terminal, "CODE'): ", code.lower())
        await at(terminal, "You own the bot on Telegram")
        await at(terminal, "At what hour (- for none) [-]: ", "8")
        assert "You are my owner now" in (await fake.sees(7, "owner now")).text
        assert await asyncio.to_thread(terminal.ends) == 0
    assert TOKEN not in terminal.screen
    assert terminal.lacks(transcript(ROOT / "docs/setup.md", 2), home, PROGRAM) == []
    assert sum(len(line) + 1 for line in terminal.typed) <= KEYS_MAX
    assert written(home)["platforms"]["telegram"] == {
        "api_base": option.partition("=")[2], "token": {"file": "secrets/platforms.telegram.token"}, "owner": "7",
    }  # fmt: skip


async def test_a_shoal_that_runs_takes_up_model_and_bot_and_only_slips_are_asked_again(
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
    await at(terminal, "Settings made here take effect at once.")
    await at(terminal, "Number [1]: ", "42")
    await at(terminal, "Number [1]: ", "6")
    await at(terminal, "8080/v1]: ", "not an address")
    await at(terminal, "8080/v1]: ", f"{address}/v1")
    await at(terminal, "goes back): ", "sk-a-key-that-is-not-shown")
    await at(terminal, "Model (a number, a name, or a part of one) [one]: ", "tw")
    await at(terminal, "mine/two answers")
    await at(terminal, "Number [1]: ", "1")
    await at(terminal, "Enter goes back): ", "123456:AAAnotherBotsTokenThatIsWrong")
    await at(terminal, "Telegram refused the token")
    await at(terminal, "Enter goes back): ", TOKEN)
    await at(terminal, "It answers with a code to type here.")
    await fake.says(7, "/start")
    code = (await fake.sees(7, "shoal pair ")).text.split("shoal pair ")[1][:8]
    await at(terminal, "CODE'): ", "short")
    await at(terminal, "A pairing code has 8 letters and digits")
    await at(terminal, "CODE'): ", "22222222")
    await at(terminal, "No such code waits")
    await at(terminal, "CODE'): ", code)
    await at(terminal, "You own the bot on Telegram")
    assert await asyncio.to_thread(terminal.ends) == 0
    assert terminal.screen.count("Telegram is connected") == 1
    assert TOKEN not in terminal.screen
    assert "sk-a-key" not in terminal.screen
    assert written(home)["platforms"]["telegram"]["owner"] == "7"  # pyrefly: ignore[bad-index]


async def test_a_stranger_who_writes_first_is_in_nobodys_way(start: Start, home: Path) -> None:
    async with telegram() as (fake, option):
        fake.add_chat(8)
        terminal = start("--set", option)
        await at(terminal, "Number [1]: ", "demo")
        await at(terminal, "Number [1]: ", "telegram")
        await at(terminal, "Enter goes back): ", "123456:AAAnotherBotsTokenThatIsWrong")
        shown = await at(terminal, "Enter goes back): ", TOKEN)
        assert ("restart" in shown, "Number [1]" in shown) == (False, False), "only the token is asked for again"
        await at(terminal, "directly and not in a group")
        await fake.says(8, "hello from a stranger", user=8)
        other = (await fake.sees(8, "Your code is ")).text.split("Your code is ")[1].split(".")[0]
        await at(terminal, "CODE'): ", "22222222")
        await at(terminal, "Is it not yours? Write to your bot, and it sends you your own.")
        await fake.says(7, "/start")
        code = (await fake.sees(7, "Your code is ")).text.split("Your code is ")[1].split(".")[0]
        assert code != other
        await at(terminal, "CODE'): ", code)
        await at(terminal, "You own the bot on Telegram")
        await at(terminal, "At what hour (- for none) [-]: ", "25:00")
        await at(terminal, "'25:00' is no hour. Write it as 8, 8:00 or 20:30.")
        await at(terminal, "At what hour (- for none) [-]: ", "8")
        await at(terminal, "A brief comes in telegram:7:")
        assert await asyncio.to_thread(terminal.ends) == 0
    assert written(home)["platforms"]["telegram"]["owner"] == "7"  # pyrefly: ignore[bad-index]


async def test_teams_takes_the_credentials_and_says_which_address_to_call(
    start: Start, home: Path, ending: AsyncExitStack
) -> None:
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
        ("", "", "wrong", "https://bot.example.org", "Teams"),  # Enter keeps what was typed before
        ("", "", PASSWORD, "", "Teams accepts the credentials."),
    ):
        await at(terminal, "Microsoft App ID", app_id)
        await at(terminal, "App Tenant ID", tenant)
        await at(terminal, "Client secret", password)
        await at(terminal, "internet reaches this server", public_url)
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
        ("notes.json", PROJECT, fake.settings()["subscription"], "is not a service account's key"),
        ("key.json", "", "", "directly and not in a group"),  # Enter keeps what was typed before
    ):
        await at(terminal, "Key file (JSON)", str(tmp_path / file))
        await at(terminal, "Authentication audience", project)
        await at(terminal, "Pub/Sub subscription", subscription)
        await at(terminal, said)
    await fake.says("dm", "hello")
    code = (await fake.sees("dm", "Your code is ")).text.split("Your code is ")[1].split(".")[0]
    await at(terminal, "CODE'): ", code)
    await at(terminal, "At what hour (- for none) [-]: ", "")
    assert await asyncio.to_thread(terminal.ends) == 0, terminal.screen
    assert load_config(home, {}).platforms.of("google_chat")[0].owner == "1001"


async def test_it_goes_on_where_it_was_left(start: Start, home: Path) -> None:
    async with telegram() as (fake, option):
        terminal = start("--set", option)
        await at(terminal, "Number [1]: ", "demo")
        await at(terminal, "Number [1]: ", "telegram")
        await at(terminal, "Enter goes back): ", TOKEN)
        await at(terminal, "directly and not in a group")
        terminal.presses(b"\x03")
        await at(terminal, "Setup ended. Settings written so far are kept.")
        shown = await at(terminal, f"'{PROGRAM} setup' continues where you left off.")
        assert await asyncio.to_thread(terminal.ends) == 130
        assert "Nothing was changed" not in shown + terminal.screen
        again = start("model")
        await at(again, "Number [1]: ", "demo")
        await at(again, "directly and not in a group")
        await fake.says(7, "hello")
        code = (await fake.sees(7, "Your code is ")).text.split("Your code is ")[1].split(".")[0]
        await at(again, "CODE'): ", code)
        await at(again, "At what hour (- for none) [-]: ", "")
        assert await asyncio.to_thread(again.ends) == 0
        last = start()
        await at(last, "Telegram is connected.")
        await at(last, "Next: ")
        assert await asyncio.to_thread(last.ends) == 0
        assert last.typed == [], "nothing is asked that is known"
    assert written(home)["platforms"]["telegram"]["owner"] == "7"  # pyrefly: ignore[bad-index]


async def test_an_account_that_rests_is_switched_on_with_the_token_it_has(start: Start, home: Path) -> None:
    async with telegram() as (fake, option):
        (home / "secrets").mkdir(parents=True)
        (home / "secrets/t").write_text(TOKEN)
        (home / "shoal.toml").write_text(
            f"[model]\nname = 'demo'\n[platforms.telegram]\nenabled = false  # imported\nallow = ['7', '8']\n"
            f"api_base = '{option.partition('=')[2]}'\ntoken = {{ file = 'secrets/t' }}\n"
        )
        terminal = start()
        await at(terminal, "Number [1]: ", "telegram")
        await at(terminal, "directly and not in a group")
        await fake.says(7, "hello")
        code = (await fake.sees(7, "Your code is ")).text.split("Your code is ")[1].split(".")[0]
        await at(terminal, "CODE'): ", code)
        await at(terminal, "At what hour (- for none) [-]: ", "")
        assert await asyncio.to_thread(terminal.ends) == 0
    account = configured(load_config(home, {}), TelegramSettings)[0]
    assert (account.enabled, account.owner, account.allow) == (True, "7", ("7", "8"))


@pytest.mark.parametrize("no_colour", [True, False])
async def test_questions_have_the_colours_that_are_wanted(start: Start, no_colour: bool) -> None:
    terminal = start(TERM="xterm-256color", **({"NO_COLOR": "1"} if no_colour else {}))
    await at(terminal, "Number [1]:")
    terminal.presses(b"\x03")
    await at(terminal, "Setup ended. ")
    assert await asyncio.to_thread(terminal.ends) == 130
    assert bool(re.search(r"\x1b\[(?:[0-9;]*;)?[39]\d(?:;[0-9;]*)?m", terminal.screen)) is not no_colour


async def test_the_end_of_the_input_leaves_too(start: Start) -> None:
    terminal = start()
    await at(terminal, "Number [1]: ")
    terminal.presses(b"\x04")
    await at(terminal, "Setup ended. ")
    assert await asyncio.to_thread(terminal.ends) == 130


async def test_a_used_up_account_is_said_before_it_is_kept(start: Start, home: Path, ending: AsyncExitStack) -> None:
    used_up = Refusal(429, "You exceeded your current quota.", "insufficient_quota")
    model = FakeModel(script=lambda _: used_up, settings=FakeSettings(models=("fake-1",)))
    address = await model.start("127.0.0.1", 0)
    ending.push_async_callback(model.stop)
    terminal = start()
    await at(terminal, "Number [1]: ", "server")
    await at(terminal, "Its address (- goes back) [http://127.0.0.1:8080/v1]: ", f"{address}/v1")
    await at(terminal, "Its key, if it has one", "some-key")
    await at(terminal, "Model [fake-1]: ", "")
    await at(terminal, "has no credit or quota left")
    await at(terminal, "Keep it anyway? [y/N]: ", "n")
    await at(terminal, "Choose another model of it? [Y/n]: ", "n")
    await at(terminal, "Number [1]: ", "demo")
    await at(terminal, "Number [1]: ", "none")
    assert await asyncio.to_thread(terminal.ends) == 0
    assert not (home / "secrets").exists()


async def test_a_wrong_answer_brings_the_question_again(start: Start, tmp_path: Path) -> None:
    terminal = start("--set", "web.port=0")
    await at(terminal, "Number [1]: ", "local")
    if PathFinder.find_spec("xllamacpp", [sysconfig.get_path("platlib")]) is None:
        await at(terminal, "Install it now", "n")
    else:
        await at(terminal, "Path of the GGUF file", str(tmp_path / "nothing.gguf"))
        await at(terminal, "cannot be read: No such file or directory.")
        await at(terminal, "Path of the GGUF file", str(tmp_path))
        await at(terminal, "cannot be read: Is a directory.")
        await at(terminal, "Path of the GGUF file", "-")
    await at(terminal, "Number [1]: ", "sk-ant-api03-pasted-at-the-wrong-place")
    await at(terminal, "That is an Anthropic key, which does not belong here.")
    await at(terminal, "Number [1]: ", "server")
    for answer, said in (
        ("http://[::1", "http://[::1 is no address. Give one that begins with"),
        ("not a url", "not a url is no address."),
        ("a1b2c3d4e5f6a1b2c3d4e5f6", "That is no address."),
    ):
        await at(terminal, "Its address", answer)
        await at(terminal, said)
    await at(terminal, "Its address", "http://127.0.0.1:1/v1")
    await at(terminal, "Its key, if it has one", "")
    await at(terminal, "Its address (- goes back) [http://127.0.0.1:1/v1]: ", "-")
    await at(terminal, "Number [1]: ", "demo")
    await at(terminal, "Number [1]: ", "slack")
    await at(terminal, "Bot token", "")
    await at(terminal, "Number [1]: ", "none")
    assert await asyncio.to_thread(terminal.ends) == 0
    assert "App-level token" not in terminal.screen


async def test_a_service_out_of_reach_asks_for_no_other_key(start: Start) -> None:
    terminal = start("--set", "providers.openai.base_url=http://127.0.0.1:1/v1")
    await at(terminal, "Number [1]: ", "key")
    await at(terminal, "or type a part of one name.")
    await at(terminal, "Number [1]: ", "openai, w")
    await at(terminal, "Key of openai (not shown; Enter goes back): ", "sk-0123456789abcdef0123456789abcdef")
    for again in ("", "n"):
        await at(terminal, "cannot be reached")
        await at(terminal, "Try again with the same key? [Y/n]: ", again)
    await at(terminal, "Key of openai (not shown; Enter goes back): ", "")
    await at(terminal, "Number [1]: ")
    terminal.presses(b"\x03")
    assert await asyncio.to_thread(terminal.ends) == 130


@pytest.mark.parametrize("term", ["xterm", "screen"])
async def test_a_key_is_shown_nowhere_even_where_it_does_not_belong(start: Start, term: str) -> None:
    pasted = ("sk-ant-api03-0123456789abcdef", "gsk0123456789abcdefghijk", "123456:AAAnotherBotsTokenThatIsWrong")
    terminal = start(TERM=term)
    for key in pasted:
        await at(terminal, "Number [1]:", key)
    await at(terminal, "Number [1]:", "server")
    await at(terminal, "8080/v1]:", pasted[1])
    await at(terminal, "That is no address")
    await at(terminal, "8080/v1]:", "http://127.0.0.1:1/v1")
    await at(terminal, "Enter for none", pasted[0])
    await at(terminal, "[http://127.0.0.1:1/v1]:", "-")
    await at(terminal, "Number [1]:")
    terminal.presses(b"\x03")
    assert await asyncio.to_thread(terminal.ends) == 130
    assert not [key for key in pasted if key[8:] in terminal.screen]


async def test_a_model_is_chosen_by_number_name_or_a_part_of_it(
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
    await at(terminal, "and 17 more: type a part of a name, or ? for all")
    await at(terminal, "[other-0]: ", "FISH")
    await at(terminal, " 1  fish-small")
    await at(terminal, " 2  fish-large")
    await at(terminal, "[other-0]: ", "99")
    await at(terminal, "99 is not in the list. Take it anyway? [y/N]: ", "n")
    await at(terminal, "[other-0]: ", "fish")
    await at(terminal, " 2  fish-large")
    await at(terminal, "[other-0]: ", "2")
    await at(terminal, "mine/fish-large answers")
    await at(terminal, "Number [1]: ", "none")
    assert await asyncio.to_thread(terminal.ends) == 0
    assert written(home)["model"]["name"] == "mine/fish-large"


async def test_a_port_that_is_none_brings_the_question_again(start: Start) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        terminal = start("--set", f"web.port={other.getsockname()[1]}")
        await at(terminal, "Port of the page", "abc")
        await at(terminal, "A port is a number up to 65535; with 0 the system chooses one at each start.")
        await at(terminal, "Port of the page", "0")
        await at(terminal, "Number [1]: ")


async def test_another_directory_is_named_only_once_it_can_be_one(start: Start, home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "thesis.tex").write_text("")
    terminal = start()
    await at(terminal, "Directory: ", str(tmp_path / "systemctl"))
    assert "export" not in await at(terminal, "is a file. Choose another directory.")
    await at(terminal, "Directory: ", str(tmp_path / "fresh"))
    await at(terminal, f"export SHOAL_HOME={tmp_path / 'fresh'}")


def test_an_empty_key_and_an_hour_that_is_none_are_said(shoal: Shoal) -> None:
    ran = shoal("setup", "--provider", "openai", "--key", "-", stdin="\n")
    assert (ran.code, "What --key names is empty." in ran.out) == (1, True)
    ran = shoal("setup", "--brief", "noon")
    assert (ran.code, "'noon' is no hour. Write it as 8, 8:00 or 20:30." in ran.out) == (1, True)


def test_a_brief_can_be_had_in_a_fresh_home_before_any_chat(shoal: Shoal) -> None:
    ran = shoal("setup", "--brief", "8")
    assert (ran.code, "A brief comes on the page, first at " in ran.out) == (0, True), ran.out
    (brief,) = json.loads(shoal("triggers", "list", "--json").out)
    assert (brief["name"], brief["schedule"], brief["thread"]) == ("daily-brief", "0 8 * * *", "web:lobby:brief")


@pytest.mark.parametrize("command", [("init",), ("run", "--port", "0"), ("ask", "hello")])
def test_no_command_fills_the_home_of_another_product(shoal: Shoal, home: Path, command: tuple[str, ...]) -> None:
    home.mkdir()
    (home / "openclaw.json").write_text("{}")
    ran = shoal(*command)
    assert (ran.code, "belongs to another product (openclaw)" in ran.err) == (1, True)
    assert [one.name for one in home.iterdir()] == ["openclaw.json"]


def test_a_chosen_model_is_kept_in_the_audit_log_also_while_nothing_runs(shoal: Shoal, home: Path, model: str) -> None:
    ran = shoal(
        "setup", "--provider", "server", "--address", f"{model}/v1", "--model", "fake-1", "--key", "-", stdin="right\n"
    )
    assert ran.code == 0, ran.out + ran.err
    rows = json.loads(shoal("audit", "tail", "--json").out)
    assert "model mine/fake-1" in [row["entry"]["action"] for row in rows]
    again = shoal("setup")
    assert "mine/fake-1 answers: " in again.out
    assert "wrote" not in again.out, "what is written already is not told of again"


# ---- the start at login ----


def test_a_unit_starts_this_shoal_on_this_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_launchd_is_told_in_its_own_form(monkeypatch: pytest.MonkeyPatch) -> None:
    import plistlib

    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/shoal"])
    root = Path("~/.shoal").expanduser()
    service = setup_checks.login_service(root)
    assert service is not None
    content = plistlib.loads(service.content)
    assert content["ProgramArguments"] == ["/usr/local/bin/shoal", "--home", str(root), "run"]
    assert (content["Label"], content["RunAtLoad"]) == ("shoal", True)
