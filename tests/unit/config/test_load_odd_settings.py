"""Settings files with byte order marks, UTF-16 or invisible characters in keys."""

import codecs
from pathlib import Path

import pytest

from shoal.agents.folder import read_agent
from shoal.config import load_config
from shoal.kernel.errors import ConfigError
from shoal.kernel.secret import Secret
from shoal.turn.text_files import FileCache

SETTINGS = '[model]\r\nname = "main/grün"\r\n[providers.main]\r\nkind = "openai"\r\n'


@pytest.mark.parametrize(
    ("mark", "codec"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (b"", "utf-8"),
    ],
)
def test_settings_and_personas_with_a_byte_order_mark_are_read(tmp_path: Path, mark: bytes, codec: str) -> None:
    (tmp_path / "shoal.toml").write_bytes(mark + SETTINGS.encode(codec))
    assert load_config(tmp_path, {}).model.name == "main/grün"
    (tmp_path / "agent.toml").write_bytes(mark + 'model = "main/grün"\r\n'.encode(codec))
    assert read_agent(tmp_path).model == "main/grün"
    (tmp_path / "SOUL.md").write_bytes(mark + "Ich bin größer.\r\nJa.".encode(codec))
    assert FileCache().read(str(tmp_path / "SOUL.md"), 1000) == "Ich bin größer.\nJa."
    (tmp_path / "LONG.md").write_bytes(mark + ("ä" * 5000).encode(codec))
    long = FileCache().read(str(tmp_path / "LONG.md"), 1000)
    assert long.startswith("äää")
    assert long.endswith("äää")


@pytest.mark.parametrize("odd", ["\n", "\r", "\t", "\0", "\u200b", "\u00a0", "\u202f", "\ufeff", "\x7f", "\u2028"])
def test_an_invisible_character_inside_a_key_is_an_error_that_names_the_setting(tmp_path: Path, odd: str) -> None:
    literal = "".join(f"\\u{ord(char):04x}" for char in odd)
    (tmp_path / "shoal.toml").write_text(f'[providers.main]\nkind = "openai"\napi_key = "sk-abc{literal}def"\n')
    with pytest.raises(ConfigError, match="api_key") as told:
        load_config(tmp_path, {})
    assert "sk-abc" not in str(told.value)
    with pytest.raises(ConfigError, match="env KEY"):
        Secret("env", "KEY", environ={"KEY": f"sk-abc{odd}def"}).reveal()


@pytest.mark.parametrize("around", ["\n", "\r\n", " ", "\ufeff", "\u200b", "\u00a0"])
def test_copied_whitespace_around_a_key_is_stripped(tmp_path: Path, around: str) -> None:
    (tmp_path / "key").write_text(f"{around}sk-abc{around}")
    assert Secret("file", str(tmp_path / "key")).reveal() == "sk-abc"
    assert Secret("env", "KEY", environ={"KEY": f"{around}sk-abc{around}"}).reveal() == "sk-abc"


def test_a_multi_line_credential_keeps_its_line_endings() -> None:
    for text in ('{\n "type": "service_account"\n}', "-----BEGIN KEY-----\nabc\n-----END KEY-----"):
        assert Secret("value", text).reveal() == text


@pytest.mark.parametrize("name", ["X-\\u200bKey", "X-Key\\n", "X Key", "", "X:Key"])
def test_a_header_with_an_odd_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "shoal.toml").write_text(f'[providers.main]\nkind = "openai"\nheaders = {{ "{name}" = "x" }}\n')
    with pytest.raises(ConfigError, match="headers"):
        load_config(tmp_path, {})
