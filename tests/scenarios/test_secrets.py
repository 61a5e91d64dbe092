"""Secrets of the configuration reach neither the model nor the people, whatever a tool prints."""

from pathlib import Path

from tests.scenarios.kit import echo, echoes

from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario


async def test_a_configured_secret_in_a_result_is_taken_out(tmp_path: Path) -> None:
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
