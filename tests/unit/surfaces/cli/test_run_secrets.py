"""No output of a running Shoal or its commands contains a secret. Every secret setting contains a canary value."""

from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal

SETTINGS = """
[model]
name = "mine/fake-1"

[providers.mine]
kind = "openai"
base_url = "{address}/v1"
api_key = "canary-provider-key-1"
headers = {{ X-Team = "canary-header-2" }}

[providers.commanded]
kind = "openai"
base_url = "{address}/v1"
api_key = {{ command = ["cat", "{command_file}"] }}

[turns]
model_attempts_max = 1

[platforms.telegram]
token = "123456:canary-telegram-4"
webhook_secret = "canary-webhook-5"
api_base = "http://127.0.0.1:1"
owner = "4711"

[tools]
brave_api_key = "canary-brave-6"

[web]
token = "canary-web-token-7-is-long-enough-to-pass"

[logging]
level = "debug"
"""


@pytest.fixture
def planted(shoal: Shoal, home: Path, model: str, tmp_path: Path) -> None:
    assert shoal("init").code == 0
    (tmp_path / "vault").write_text("canary-command-3")
    (home / "shoal.toml").write_text(SETTINGS.format(address=model, command_file=tmp_path / "vault"))


@pytest.mark.usefixtures("planted")
def test_error_output_shows_no_secret(shoal: Shoal, home: Path) -> None:
    file = home / "shoal.toml"
    database = '[database]\nurl = "postgresql://u:canary-db-8@127.0.0.1:1/x"\n'
    file.write_text(f"{file.read_text()}\n{database}")
    ran = shoal("threads", "list")
    assert ran.code == 1
    assert "127.0.0.1" in ran.err or "database" in ran.err.lower()
    assert "canary" not in ran.err + ran.out
