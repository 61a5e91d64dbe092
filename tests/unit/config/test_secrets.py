"""Secret settings are resolved from their source and never printed."""

import stat
import sys
from pathlib import Path

import pytest

from shoal.config import ConfigError, Secret, load_config
from shoal.kernel.secret import NO_SECRET

CANARY = "sk-canary-4711"


def test_a_secret_is_in_no_text_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text(
        f"""
        [providers.openai]
        api_key = "{CANARY}"
        headers = {{ Authorization = "Bearer {CANARY}" }}
        [platforms.telegram]
        token = "{CANARY}"
        [web]
        token = "{CANARY}"
        [database]
        url = "postgresql://u:{CANARY}@h/d"
        """
    )
    config = load_config(tmp_path, {"BRAVE_API_KEY": CANARY})
    assert config.web.token.reveal() == CANARY
    for text in (
        repr(config),
        str(config),
        f"{config.web.token}",
        f"{config.web.token!s:>40}",
        f"{config.web.token!r}",
    ):
        assert CANARY not in text


@pytest.mark.parametrize(
    "line",
    [
        f"[web]\ntoken = ['{CANARY}']",
        f"[web]\ntoken = {{ value = '{CANARY}' }}",
        f"[web]\ntoken = {{ env = 'A', file = '{CANARY}' }}",
        f"[database]\nurl = 'mysql://{CANARY}@h'",
        f"[platforms.telegram]\ntokn = '{CANARY}'\ntoken = 't'",
        f"[providers.openai]\nheaders = {{ a = ['{CANARY}'] }}",
    ],
)
def test_an_error_in_a_secret_does_not_reveal_it(tmp_path: Path, line: str) -> None:
    (tmp_path / "shoal.toml").write_text(line)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path, {})
    assert len(caught.value.problems) == 1
    assert CANARY not in str(caught.value)


def test_a_secret_is_resolved_at_each_use(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text(
        """
        [providers.openai]
        api_key = { file = "key" }
        [providers.gemini]
        api_key = { env = "MY_KEY" }
        [providers.anthropic]
        api_key = { command = ["sh", "-c", "echo from $0", "command"] }
        """
    )
    environ = {"MY_KEY": "one"}
    providers = load_config(tmp_path, environ).providers
    (tmp_path / "key").write_text("first\n")
    assert providers["openai"].api_key.reveal() == "first"
    (tmp_path / "key").write_text("second\n")
    assert providers["openai"].api_key.reveal() == "second"
    environ["MY_KEY"] = "two"
    assert providers["gemini"].api_key.reveal() == "two"
    assert providers["anthropic"].api_key.reveal() == "from command"


@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        (Secret("env", "NOT_THERE", environ={}), "The environment variable NOT_THERE is not set."),
        (Secret("file", "missing"), "secret file missing: No such file or directory."),
        (Secret("file", "empty"), "is empty."),
        (Secret("command", ("false",)), "`false` failed with exit status 1."),
        (Secret("command", ("true",)), "`true` printed no secret."),
        (
            Secret("command", ("no-such-program-here",)),
            "`no-such-program-here` cannot be run or its output is not text",
        ),
    ],
)
def test_an_unavailable_secret_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: Secret, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(ConfigError) as caught:
        secret.reveal()
    assert problem in str(caught.value)


def test_the_source_is_shown() -> None:
    assert repr(Secret()) == "Secret(not set)"
    assert repr(Secret("value", CANARY)) == "Secret(set)"
    assert repr(Secret("env", "NAME")) == "Secret(env: NAME)"
    assert not Secret()
    assert Secret("env", "NAME")


def test_a_secret_file_may_be_private(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k")
    file.chmod(stat.S_IRUSR)
    assert Secret("file", str(file)).reveal() == "k"


def test_a_secret_reference_names_its_source(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text("[web]\ntoken = { file = 'key' }\n[tools]\nbrave_api_key = { env = 'B' }")
    config = load_config(tmp_path, {})
    assert config.web.token.parts() == ("file", str(tmp_path / "key"))
    assert config.tools.brave_api_key.parts() == ("env", "B")
    assert Secret("value", "x").parts() == ("value", "x")


def test_observers_receive_each_resolved_value(tmp_path: Path) -> None:
    told: list[str] = []
    file = tmp_path / "key"
    file.write_text("first")
    for secret in (Secret("file", str(file)), Secret("command", (sys.executable, "-c", "print('printed')")), Secret()):
        secret.observe(told.append)
        secret.reveal()
    assert told == ["first", "printed"]
    assert not NO_SECRET.reveal()
