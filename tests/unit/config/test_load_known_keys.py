"""Every secret in a configuration is registered for redaction."""

import sys
from pathlib import Path

from tests.configured import configured

from shoal.config import load_config
from shoal.config.secrets import watch_secrets
from shoal.platforms.telegram.settings import TelegramSettings

COMMAND = [sys.executable, "-c", "print('canary-command')"]
SETTINGS = {
    "providers": {
        "mine": {
            "kind": "openai",
            "api_key": "canary-written",
            "headers": {"X-Team": "canary-plain", "X-Key": "canary-header"},
        },
        "other": {"kind": "openai", "api_key": {"command": COMMAND}},
        "unset": {"kind": "openai", "api_key": {"env": "NOT_SET_ANYWHERE"}},
    },
    "platforms": {
        "telegram": {"token": {"file": "telegram"}, "webhook_secret": "canary-webhook"},
        "discord": [{"account": "a", "token": "canary-a"}, {"account": "b", "token": "canary-b"}],
        "webhook": {"shop": {"secret": "canary-shop"}},
    },
    "tools": {"brave_api_key": {"env": "SEARCH"}},
    "database": {"url": "postgresql://shoal:canary-password@db/shoal"},
}
AT_HAND = {
    "canary-written", "canary-header", "canary-file", "canary-webhook", "canary-a", "canary-b", "canary-shop",
    "canary-env", "canary-token", "postgresql://shoal:canary-password@db/shoal",
}  # fmt: skip


def test_literal_secrets_are_registered_immediately_and_command_secrets_on_lookup(tmp_path: Path) -> None:
    (tmp_path / "telegram").write_text("canary-file\n")
    (tmp_path / "token").write_text("canary-token\n")
    config = load_config(tmp_path, {"SEARCH": "canary-env"}, SETTINGS)
    told: set[str] = set()
    watch_secrets(config, told.add)
    assert told == AT_HAND
    config.providers["other"].api_key.reveal()
    assert told == AT_HAND | {"canary-command"}


def test_a_replaced_secret_is_registered_on_lookup(tmp_path: Path) -> None:
    (tmp_path / "telegram").write_text("canary-old")
    config = load_config(tmp_path, {}, {"platforms": {"telegram": {"token": {"file": "telegram"}}}})
    told: list[str] = []
    watch_secrets(config, told.append)
    (tmp_path / "telegram").write_text("canary-new")
    configured(config, TelegramSettings)[0].token.reveal()
    assert told == ["canary-old", "canary-new"]
