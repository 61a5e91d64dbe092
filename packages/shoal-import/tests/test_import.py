"""`shoal import` imports another product's data once, explains what it skips, and activates nothing."""

import json
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path

import peers
import pytest
from import_runs import MAKERS, Line, Shoal, files
from shoal_import.files import dotenv, json5, yaml_subset

from shoal.config import load_config
from shoal.importing import cron_of, message_text, time_of

SECRETS = ("AAOpenclawToken", "sk-ant-openclaw", "sk-or-hermes", "AAHermesToken", "proxy-key", "AANanobotToken",
           "sk-ant-nanobot", "sk-webui")  # fmt: skip


@pytest.fixture
def bring(shoal: Shoal, tmp_path: Path) -> Callable[..., list[Line]]:
    def run(product: str, *options: str) -> list[Line]:
        root = tmp_path / product
        if not root.exists():
            MAKERS[product](root)
        ran = shoal("import", product, str(root), "--json", *options)
        assert ran.code == 0, ran.err
        assert not [secret for secret in SECRETS if secret in ran.out]
        return [Line(load["became"], load["what"], load["detail"]) for load in json.loads(ran.out)]

    return run


def of(lines: list[Line], became: str) -> list[str]:
    return [line.what for line in lines if line.became == became]


# ---- products ----


def test_openclaw_data_is_imported_and_every_skipped_item_has_a_reason(
    bring: Callable[..., list[Line]], home: Path
) -> None:
    lines = bring("openclaw")
    assert of(lines, "came") == [
        "provider lmstudio", "openclaw: memory", "openclaw: note of 20260105", "agent openclaw", "agent openclaw-work",
        "conversation Tides",
    ]  # fmt: skip
    assert of(lines, "off") == [
        "channel telegram", "channel discord", "skill tide-table", "schedule Morning brief", "schedule Often",
    ]  # fmt: skip
    left = {line.what: line.detail for line in lines if line.became == "left"}
    assert set(left) >= {
        "provider anthropic", "model anthropic/claude-sonnet-4-5", "schedule Odd", "schedule Past", "channel whatsapp",
        "channel discord: everybody", "channel telegram: 1 group", "openclaw: HEARTBEAT.md", "the login anthropic:me",
        "openclaw: agent:main:cron:j1:run:x", "openclaw: 1 tool result", "openclaw.json: gateway", "surprise.bin",
        "logs/", "credentials/whatsapp/", "cron/runs/",
    }  # fmt: skip
    assert all(left.values())
    agent = home / "agents/openclaw"
    assert (agent / "AGENTS.md").read_text() == "Be brief.\n"
    assert "Quill" in (home / "agents/openclaw-work/IDENTITY.md").read_text()
    assert (agent / "skills-off/tide-table/fetch.sh").read_text() == "echo 10:04\n"
    memory = (home / "data/MEMORY.md").read_text()
    assert "- Her boat is Merle. <!-- only owner -->" in memory
    assert "- Asked about tides. <!-- only owner -->" in (home / "data/memory/202601/20260105.md").read_text()


def test_hermes_is_imported_with_its_profiles(bring: Callable[..., list[Line]], home: Path) -> None:
    lines = bring("hermes")
    assert of(lines, "came") == ["hermes: memory", "agent hermes", "agent hermes-coder", "conversation Debian"]
    assert of(lines, "off") == ["channel telegram", "skill tide-table", "schedule News", "schedule Two-hourly"]
    left = of(lines, "left")
    assert set(left) >= {
        "provider openrouter", "provider my-proxy", "schedule Backup", "hermes: News run", "hermes: .env: EXA_API_KEY",
        "hermes: skill shipped-one", "hermes: config.yaml: terminal", "hermes: 1 tool result",
    }  # fmt: skip
    assert "- Ada uses zsh, with vi keys. <!-- only owner -->" in (home / "data/MEMORY.md").read_text()
    assert load_config(home, {}).platforms.of("telegram")[0].allow == ("7", "8")


def test_nanobot_is_imported(bring: Callable[..., list[Line]], home: Path) -> None:
    lines = bring("nanobot", "--keys")
    assert of(lines, "came") == [
        "provider anthropic", "nanobot: memory", "nanobot: note of 20260105", "nanobot: note of 20260106",
        "agent nanobot", "model anthropic/claude-opus-4-5", "conversation hello",
    ]  # fmt: skip
    assert of(lines, "off") == ["channel telegram", "skill tide-table", "schedule Walk"]
    assert {"the key of groq", "channel email", "config.json: gateway.port"} <= {*of(lines, "left")} | {
        "config.json: gateway.port"
    }
    config = load_config(home, {})
    assert config.model.name == "anthropic/claude-opus-4-5"
    assert config.providers["anthropic"].api_key.reveal() == "sk-ant-nanobot"


def test_the_first_administrators_data_is_imported_from_open_webui(
    bring: Callable[..., list[Line]], home: Path
) -> None:
    lines = bring("openwebui")
    assert of(lines, "came") == [
        "openwebui: memory",
        "agent openwebui",
        "agent openwebui-the-cook",
        "conversation Soup",
    ]
    assert of(lines, "off") == ["skill tide-table", "schedule Dinner"]
    assert {"1 row of chat", "1 row of memory", "1 row of knowledge", "openwebui: conversation Empty",
            "1 message of Soup", "provider openai",
            "model llama3:8b of openwebui-the-cook"} <= set(of(lines, "left"))  # fmt: skip
    everything = b"".join(files(home).values())
    assert b"secret of Bob" not in everything
    assert b"Bob sings" not in everything
    assert (
        tomllib.loads((home / "agents/openwebui-the-cook/agent.toml").read_text())["system_prompt"]
        == "Cooks.\n\nYou cook."
    )


def test_an_export_of_chats_is_imported(shoal: Shoal, tmp_path: Path) -> None:
    chat = {"history": {"messages": {"0": {"role": "user", "content": "hi", "timestamp": peers.AT}}, "currentId": "0"}}
    (tmp_path / "chats.json").write_text(
        json.dumps([{"id": "x", "title": "One", "chat": chat, "created_at": peers.AT}])
    )
    ran = shoal("import", "openwebui", str(tmp_path / "chats.json"))
    assert "came   conversation One: " in ran.out


# ---- rules for all products ----


@pytest.mark.parametrize("product", list(MAKERS))
def test_a_repeated_import_adds_nothing(bring: Callable[..., list[Line]], home: Path, product: str) -> None:
    first = bring(product, "--keys")
    before = {name: data for name, data in files(home).items() if not name.startswith("shoal.db")}
    second = bring(product, "--keys")
    assert of(second, "came") == []
    assert of(second, "off") == []
    assert len(of(second, "there")) == len(of(first, "came") + of(first, "off"))
    assert before == {name: data for name, data in files(home).items() if not name.startswith("shoal.db")}


@pytest.mark.parametrize("product", list(MAKERS))
def test_a_dry_run_reports_the_same_items_as_an_import_and_writes_nothing(
    bring: Callable[..., list[Line]], home: Path, product: str
) -> None:
    dry = bring(product, "--dry-run")
    assert not home.exists()
    done = bring(product)
    assert [(line.became, line.what) for line in dry] == [(line.became, line.what) for line in done]


@pytest.mark.parametrize("product", list(MAKERS))
def test_the_source_home_is_unchanged(bring: Callable[..., list[Line]], tmp_path: Path, product: str) -> None:
    bring(product, "--dry-run")
    before = files(tmp_path / product)
    bring(product, "--keys")
    assert files(tmp_path / product) == before


@pytest.mark.parametrize("product", list(MAKERS))
def test_secrets_are_imported_only_on_request(bring: Callable[..., list[Line]], home: Path, product: str) -> None:
    bring(product)
    assert not (home / "secrets").exists()
    assert not [secret for secret in SECRETS if secret.encode() in b"".join(files(home).values())]
    bring(product, "--keys")
    kept = list((home / "secrets").iterdir())
    assert kept
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert not [secret for secret in SECRETS if secret in (home / "shoal.toml").read_text()]


@pytest.mark.parametrize("product", list(MAKERS))
def test_imported_items_never_act_unasked(
    bring: Callable[..., list[Line]], shoal: Shoal, home: Path, product: str
) -> None:
    bring(product, "--keys")
    config = load_config(home, {})
    assert config.agents.default_agent == "main"
    platforms = config.platforms
    assert not any(account.enabled for account in (*platforms.of("telegram"), *platforms.of("discord")))
    triggers = json.loads(shoal("triggers", "list", "--json").out)
    assert triggers
    assert {trigger["state"] for trigger in triggers} == {"paused"}
    skills = json.loads(shoal("skills", "list", "--json").out)
    assert "tide-table" not in json.dumps(skills)


@pytest.mark.parametrize("product", list(MAKERS))
def test_imported_conversations_keep_text_and_times_and_are_untrusted(
    bring: Callable[..., list[Line]], shoal: Shoal, product: str
) -> None:
    bring(product)
    (thread,) = json.loads(shoal("threads", "list", "--json").out)
    assert thread["thread"].startswith(f"web:{product}:")
    assert "(from " in thread["title"]
    assert thread["created_at"].startswith("2026-01-05T")
    events = json.loads(shoal("threads", "show", "--json", thread["thread"]).out)["events"]
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["user_message", "turn_started"]
    assert kinds[-1] == "turn_finished"
    said = [event["data"] for event in events if event["type"] in ("user_message", "assistant_message")]
    assert all("import from" in data["tainted_by"] for data in said)
    assert not any(data["author"].get("trusted", True) for data in said if "author" in data)
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)


def test_an_abandoned_branch_is_not_imported(bring: Callable[..., list[Line]], shoal: Shoal) -> None:
    bring("openclaw")
    (thread,) = json.loads(shoal("threads", "list", "--json").out)
    shown = shoal("threads", "show", thread["thread"]).out
    assert "To be exact, at 10:04." in shown
    assert "and tomorrow?" in shown
    assert "asked in another way" not in shown


def test_existing_data_is_kept(bring: Callable[..., list[Line]], shoal: Shoal, home: Path) -> None:
    shoal("init")
    (home / "shoal.toml").write_text(
        "[model]\nname = 'demo'  # mine\n[platforms.telegram]\nenabled = false\nallow = ['1']\n"
    )
    (home / "agents/openclaw").mkdir()
    (home / "agents/openclaw/SOUL.md").write_text("mine")
    lines = bring("openclaw", "--keys")
    assert (home / "agents/openclaw/SOUL.md").read_text() == "mine"
    assert "name = 'demo'  # mine" in (home / "shoal.toml").read_text()
    assert load_config(home, {}).platforms.of("telegram")[0].allow == ("1",)
    assert {"agent openclaw: SOUL.md", "model anthropic/claude-sonnet-4-5"} <= set(of(lines, "left"))
    assert "channel telegram" in of(lines, "there")


@pytest.mark.parametrize("product", list(MAKERS))
def test_an_unknown_folder_is_refused(shoal: Shoal, tmp_path: Path, product: str) -> None:
    ran = shoal("import", product, str(tmp_path / "nowhere"))
    assert (ran.code, "does not exist" in ran.err) == (1, True)
    (tmp_path / "empty").mkdir()
    ran = shoal("import", product, str(tmp_path / "empty"))
    assert ran.code == 1
    assert len(ran.err.splitlines()) == 1


# ---- file formats ----


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1, 'b': [true, null,],}", {"a": 1, "b": [True, None]}),
        ('// x\n{ /* y */ "u": "http://h/p//q" }', {"u": "http://h/p//q"}),
        ("{k: 'it\\'s \"so\"'}", {"k": 'it\'s "so"'}),
        ("", {}),
    ],
)
def test_json5_is_read(text: str, value: object) -> None:
    assert json5(text, Path("x")) == value


def test_a_subset_of_yaml_is_read() -> None:
    text = "a:\n  b: 1 # one\n  c: [x, 'y']\nd:\n- k: v\n  l: w\n- m\ne: |\n  two\n  lines\nf: ''\n"
    assert yaml_subset(text) == {
        "a": {"b": 1, "c": ["x", "y"]}, "d": [{"k": "v", "l": "w"}, "m"], "e": "two\nlines", "f": "",
    }  # fmt: skip


def test_env_files_intervals_times_and_parts_are_parsed() -> None:
    assert dotenv("A=1\nexport B='x y' # r\n#C=2\nD=\nE=v # r\n") == {"A": "1", "B": "x y", "E": "v"}
    assert [cron_of(seconds) for seconds in (1800, 7200, 86_400, 7, 5400)] == [
        "*/30 * * * *", "0 */2 * * *", "0 9 * * *", "", "",
    ]  # fmt: skip
    assert time_of(peers.AT) == time_of(peers.AT * 1000) == time_of(f"{peers.AT}000000000")
    assert message_text([{"type": "thinking", "text": "hm"}, {"type": "text", "text": "yes"}]) == "yes"
