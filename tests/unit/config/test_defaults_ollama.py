"""A running Ollama becomes the default provider. Without one, Shoal uses the demo model."""

import socket
from pathlib import Path

import pytest

from shoal.config import default_model, defaults, load_config
from shoal.config.defaults import with_ollama
from shoal.testing.model import FakeModel, FakeSettings


async def test_a_running_server_with_models_is_the_default(tmp_path: Path) -> None:
    fake = FakeModel(settings=FakeSettings(models=("tiny:1b", "large:70b")))
    async with fake.serve() as address:
        host = address.removesuffix("/v1")
        config = await with_ollama(load_config(tmp_path, {}), {"OLLAMA_HOST": host})
    assert default_model(config) == "ollama/tiny:1b"


async def test_without_a_server_the_demo_model_is_used(tmp_path: Path) -> None:
    config = await with_ollama(load_config(tmp_path, {}), {"OLLAMA_HOST": "127.0.0.1:1"})
    assert default_model(config) == "demo"


async def test_a_configured_model_is_not_replaced(tmp_path: Path) -> None:
    config = load_config(tmp_path, {"OPENAI_API_KEY": "sk-x"})
    assert await with_ollama(config, {"OLLAMA_HOST": "127.0.0.1:1"}) is config


@pytest.mark.parametrize("host", ["http://[::1", "127.0.0.1:99999", "[", "a" * 300])
async def test_an_invalid_ollama_address_falls_back_to_the_demo_model(tmp_path: Path, host: str) -> None:
    assert default_model(await with_ollama(load_config(tmp_path, {}), {"OLLAMA_HOST": host})) == "demo"


@pytest.mark.timeout(30)
async def test_a_silent_server_does_not_delay_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "OLLAMA_LIST_SECONDS", 0.1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        assert default_model(await with_ollama(load_config(tmp_path, {}), {"OLLAMA_HOST": host})) == "demo"
