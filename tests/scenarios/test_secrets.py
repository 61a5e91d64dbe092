"""Configured secrets reach neither the model nor people, even if a tool prints them."""

from pathlib import Path

import pytest
from tests.scenarios.kit import echo, echoes

from shoal.kernel.live_config import LiveConfig
from shoal.testing.model import Call, FakeModel, Refusal, Reply
from shoal.testing.scenario import scenario


async def test_a_configured_secret_in_a_result_is_redacted(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("canary-from-file")
    settings = {
        "tools": {"brave_api_key": "canary-written-out"},
        "web": {"token": {"file": "key"}},
    }
    model = FakeModel(echoes("canary-written-out", "canary-from-file"), "done")
    async with scenario(tmp_path, model, tools=(echo,), settings=settings) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        results = [event.data for event in await world.journal() if event.type == "tool_result"]
        assert len(results) == 2
        assert all("canary" not in str(result) and "[redacted:secret]" in str(result) for result in results)


async def test_no_secret_is_in_the_environment_of_a_command_or_in_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "TELEGRAM_BOT_TOKEN", "DATABASE_URL", "SHOAL_WEB__TOKEN", "MY_OWN_SECRET"):
        monkeypatch.setenv(name, f"canary-{name}")
    settings = {"web": {"token": "canary-web-token"}, "tools": {"brave_api_key": {"env": "BRAVE"}}}
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "env"}'),)), "done")
    async with scenario(tmp_path, model, settings=settings) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        assert len(model.requests) == 2
        assert "PATH=" in str(model.requests[-1].messages)
        assert "canary" not in str(list(model.requests))


async def test_provider_errors_are_journaled_without_secrets(tmp_path: Path) -> None:
    settings = {"web": {"token": "canary-web-token"}}
    model = FakeModel(Refusal(400, "the token canary-web-token is odd"))
    async with scenario(tmp_path, model, settings=settings) as world:
        await world.ada.says("go")
        await world.happens(world.ada.thread, "turn_finished")
        journal = str(await world.journal())
        assert "the token [redacted:secret] is odd" in journal
        assert "canary" not in journal + str(world.chat.texts(world.ada.thread))


async def test_a_secret_from_a_command_is_registered_when_looked_up(tmp_path: Path) -> None:
    (tmp_path / "vault").write_text("canary-from-command")
    settings = {"tools": {"brave_api_key": {"command": ["cat", str(tmp_path / "vault")]}}}
    model = FakeModel(echoes("canary-from-command"), "done")
    async with scenario(tmp_path, model, tools=(echo,), settings=settings) as world:
        world.app[LiveConfig].current.tools.brave_api_key.reveal()
        await world.ada.says("go")
        await world.ada.sees("done")
        (result,) = [event.data for event in await world.journal() if event.type == "tool_result"]
        assert "[redacted:secret]" in str(result)
