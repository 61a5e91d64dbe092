"""API keys from every source, resolved at each call."""

import sys
from pathlib import Path

import pytest

from shoal.kernel.errors import ProviderRefused
from shoal.kernel.messages import UserMessage
from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.settings import ProviderSettings
from shoal.models.catalog import build_provider
from shoal.models.http_provider import COMMAND_CACHE_SECONDS, ApiKey
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.provider import answer, request
from shoal.testing.model import FakeModel, FakeSettings


def counting_command(folder: Path) -> tuple[str, ...]:
    """Return a command that prints key-1 on its first run, key-2 on its second, and so on."""
    program = (
        "import pathlib,sys;p=pathlib.Path(sys.argv[1]);n=int(p.read_text() or 0)+1 if p.exists() else 1;"
        "p.write_text(str(n));print(f'key-{n}')"
    )
    return (sys.executable, "-c", program, str(folder / "count"))


async def test_literals_variables_and_files_are_read_at_each_use(tmp_path: Path) -> None:
    clock, environ = ManualClock(), {"MY_KEY": "one"}
    assert await ApiKey(Secret("value", "plain"), "p", clock).get() == "plain"
    assert await ApiKey(NO_SECRET, "p", clock).get() == ""
    from_variable = ApiKey(Secret("env", "MY_KEY", environ=environ), "p", clock)
    assert await from_variable.get() == "one"
    environ["MY_KEY"] = "two"
    assert await from_variable.get() == "two"
    path = tmp_path / "key"
    path.write_text("first\n")
    from_file = ApiKey(Secret("file", str(path)), "p", clock)
    assert await from_file.get() == "first"
    path.write_text("second\n")
    assert await from_file.get() == "second"


@pytest.mark.parametrize(
    "source",
    [
        Secret("env", "MISSING", environ={}),
        Secret("file", "/does/not/exist"),
        Secret("command", ("/does/not/exist",)),
        Secret("command", (sys.executable, "-c", "raise SystemExit(3)")),
        Secret("command", (sys.executable, "-c", "")),
    ],
)
async def test_an_unavailable_key_has_a_reason(source: Secret) -> None:
    with pytest.raises(ProviderRefused, match="of p"):
        await ApiKey(source, "p", ManualClock()).get()


async def test_a_command_runs_again_when_its_key_expires_and_when_it_is_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    key = ApiKey(Secret("command", counting_command(tmp_path)), "p", clock)
    assert [await key.get(), await key.get()] == ["key-1", "key-1"]
    await clock.advance(COMMAND_CACHE_SECONDS)
    assert await key.get() == "key-2"
    key.forget()
    assert await key.get() == "key-3"


async def test_a_refused_key_is_looked_up_again_once(tmp_path: Path) -> None:
    fake = FakeModel("Hello.", settings=FakeSettings(api_key="key-2"))
    async with fake.serve() as url:
        source = Secret("command", counting_command(tmp_path))
        settings = ProviderSettings(kind="openai", base_url=f"{url}/v1", api_key=source)
        provider = build_provider("p", settings, ManualClock(), {})
        assert (await answer(provider, request(UserMessage("hi")))).message.text == "Hello."
        fake.settings = FakeSettings(api_key="another")
        events = [event async for event in provider.stream(request(UserMessage("hi")))]
        await provider.close()
    assert getattr(events[-1], "kind", "") == "auth"
    assert (tmp_path / "count").read_text() == "3"


async def test_headers_are_looked_up_like_keys() -> None:
    fake = FakeModel("Hello.")
    async with fake.serve() as url:
        team = Secret("env", "TEAM", environ={"TEAM": "reef"})
        settings = ProviderSettings(kind="openai", base_url=f"{url}/v1", headers={"X-Team": team})
        provider = build_provider("p", settings, ManualClock(), {})
        await answer(provider, request(UserMessage("hi")))
        await provider.close()
    assert fake.log[-1].headers["x-team"] == "reef"
    assert "authorization" not in fake.log[-1].headers
