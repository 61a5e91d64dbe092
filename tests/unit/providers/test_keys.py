"""Keys from everywhere, looked up at each call."""

import sys
from pathlib import Path

import pytest

from shoal.domain.errors import ProviderRefused
from shoal.domain.messages import UserMessage
from shoal.providers.build import ProviderSettings, build_provider
from shoal.providers.keys import COMMAND_CACHE_SECONDS, Key, KeySource
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.provider import answer, request
from shoal.testing.model import FakeModel, FakeSettings


def counting_command(folder: Path) -> tuple[str, ...]:
    """Prints key-1, key-2, … one further each time it is run."""
    program = (
        "import pathlib,sys;p=pathlib.Path(sys.argv[1]);n=int(p.read_text() or 0)+1 if p.exists() else 1;"
        "p.write_text(str(n));print(f'key-{n}')"
    )
    return (sys.executable, "-c", program, str(folder / "count"))


async def test_a_literal_a_variable_and_a_file_are_read_anew_each_time(tmp_path: Path) -> None:
    clock, environ = ManualClock(), {"MY_KEY": "one"}
    assert await Key(KeySource("plain"), "p", environ, clock).get() == "plain"
    assert await Key(KeySource(), "p", environ, clock).get() == ""
    from_variable = Key(KeySource(env="MY_KEY"), "p", environ, clock)
    assert await from_variable.get() == "one"
    environ["MY_KEY"] = "two"
    assert await from_variable.get() == "two"
    path = tmp_path / "key"
    path.write_text("first\n")
    from_file = Key(KeySource(file=str(path)), "p", environ, clock)
    assert await from_file.get() == "first"
    path.write_text("second\n")
    assert await from_file.get() == "second"


@pytest.mark.parametrize(
    "source",
    [
        KeySource(env="MISSING"),
        KeySource(file="/does/not/exist"),
        KeySource(command=("/does/not/exist",)),
        KeySource(command=(sys.executable, "-c", "raise SystemExit(3)")),
        KeySource(command=(sys.executable, "-c", "")),
    ],
)
async def test_a_key_that_cannot_be_had_says_why(source: KeySource) -> None:
    with pytest.raises(ProviderRefused, match="of p"):
        await Key(source, "p", {}, ManualClock()).get()


async def test_a_command_runs_again_when_its_key_expires_and_when_it_is_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    key = Key(KeySource(command=counting_command(tmp_path)), "p", {}, clock)
    assert [await key.get(), await key.get()] == ["key-1", "key-1"]
    await clock.advance(COMMAND_CACHE_SECONDS)
    assert await key.get() == "key-2"
    key.forget()
    assert await key.get() == "key-3"


async def test_a_refused_key_is_asked_for_again_once(tmp_path: Path) -> None:
    fake = FakeModel("Hello.", settings=FakeSettings(api_key="key-2"))
    async with fake.serve() as url:
        source = KeySource(command=counting_command(tmp_path))
        provider = build_provider(ProviderSettings("p", "openai", f"{url}/v1", source), ManualClock(), {})
        assert (await answer(provider, request(UserMessage("hi")))).message.text == "Hello."
        fake.settings = FakeSettings(api_key="another")
        events = [event async for event in provider.stream(request(UserMessage("hi")))]
        await provider.close()
    assert getattr(events[-1], "kind", "") == "auth"
    assert (tmp_path / "count").read_text() == "3"


async def test_headers_are_looked_up_like_keys() -> None:
    fake = FakeModel("Hello.")
    async with fake.serve() as url:
        settings = ProviderSettings("p", "openai", f"{url}/v1", headers=(("X-Team", KeySource(env="TEAM")),))
        provider = build_provider(settings, ManualClock(), {"TEAM": "reef"})
        await answer(provider, request(UserMessage("hi")))
        await provider.close()
    assert fake.log[-1].headers["x-team"] == "reef"
    assert "authorization" not in fake.log[-1].headers
