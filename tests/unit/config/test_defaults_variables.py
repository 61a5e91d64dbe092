"""Environment variables of other tools provide missing settings and never override the configuration file."""

from pathlib import Path

import pytest
from tests.configured import configured

from shoal.config import default_model, load_config
from shoal.platforms.discord.settings import DiscordSettings
from shoal.platforms.matrix.settings import MatrixSettings
from shoal.platforms.slack.settings import SlackSettings
from shoal.platforms.telegram.settings import TelegramSettings


def test_a_key_in_the_environment_configures_a_provider(tmp_path: Path) -> None:
    config = load_config(tmp_path, {"OPENROUTER_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://127.0.0.1:7"})
    assert config.providers["openrouter"].api_key.reveal() == "k"
    assert config.providers["openrouter"].base_url == "https://openrouter.ai/api/v1"
    assert config.providers["anthropic"].base_url == "http://127.0.0.1:7"
    assert not config.providers["anthropic"].api_key


def test_the_environment_completes_a_provider_without_overriding_it(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text("[providers.openai]\nbase_url = 'http://127.0.0.1:5/v1'\n")
    environ = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:6/v1"}
    provider = load_config(tmp_path, environ).providers["openai"]
    assert (provider.kind, provider.base_url, provider.api_key.reveal()) == ("openai", "http://127.0.0.1:5/v1", "k")


def test_an_empty_variable_is_ignored(tmp_path: Path) -> None:
    assert load_config(tmp_path, {"OPENAI_API_KEY": "", "TELEGRAM_BOT_TOKEN": ""}) == load_config(tmp_path, {})


def test_tokens_configure_platforms(tmp_path: Path) -> None:
    environ = {"TELEGRAM_BOT_TOKEN": "t", "DISCORD_TOKEN": "d", "SLACK_BOT_TOKEN": "s", "SLACK_APP_TOKEN": "a"}
    config = load_config(tmp_path, environ)
    assert configured(config, TelegramSettings)[0].token.reveal() == "t"
    assert configured(config, DiscordSettings)[0].token.reveal() == "d"
    (slack,) = configured(config, SlackSettings)
    assert (slack.app_token.reveal(), slack.mode) == ("a", "socket")


def test_a_signing_secret_without_app_token_means_http(tmp_path: Path) -> None:
    environ = {"SLACK_BOT_TOKEN": "s", "SLACK_SIGNING_SECRET": "x"}
    assert configured(load_config(tmp_path, environ), SlackSettings)[0].mode == "http"


@pytest.mark.parametrize("environ", [{"SLACK_BOT_TOKEN": "s"}, {"MATRIX_ACCESS_TOKEN": "m"}])
def test_incomplete_tokens_do_not_configure_a_platform(tmp_path: Path, environ: dict[str, str]) -> None:
    assert load_config(tmp_path, environ) == load_config(tmp_path, {})


def test_a_token_completes_the_only_account(tmp_path: Path) -> None:
    file = tmp_path / "shoal.toml"
    file.write_text("[platforms.matrix]\nhomeserver = 'http://h'\nuser = '@a:b'\n")
    assert (
        configured(load_config(tmp_path, {"MATRIX_ACCESS_TOKEN": "m"}), MatrixSettings)[0].access_token.reveal() == "m"
    )
    file.write_text("[[platforms.telegram]]\nallow = ['*']\n")
    assert configured(load_config(tmp_path, {"TELEGRAM_BOT_TOKEN": "t"}), TelegramSettings)[0].token.reveal() == "t"


@pytest.mark.parametrize(
    ("text", "environ", "model"),
    [
        ("", {}, "demo"),
        ("[model]\nname = 'demo'", {"OPENAI_API_KEY": "k"}, "demo"),
        ("", {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, "anthropic/"),
        ("", {"GEMINI_API_KEY": "k"}, "gemini/"),
        ("[providers.openai]\napi_key = { env = 'UNSET' }", {}, "demo"),
        ("[providers.box]\nkind = 'openai'\nbase_url = 'http://h/v1'\nmodels = ['qwen']", {}, "box/qwen"),
        ("[providers.box]\nkind = 'openai'\nbase_url = 'http://h/v1'", {}, "demo"),
        ("[providers.local]\nmodel_file = 'm.gguf'", {}, "local/m"),
    ],
)
def test_the_default_model_is_that_of_the_first_usable_provider(
    tmp_path: Path, text: str, environ: dict[str, str], model: str
) -> None:
    (tmp_path / "shoal.toml").write_text(text)
    assert default_model(load_config(tmp_path, environ)).startswith(model)
