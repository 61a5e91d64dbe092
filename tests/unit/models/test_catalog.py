"""The model catalog: each model's provider, context window and price, and the data that providers publish."""

import asyncio
import json
from pathlib import Path

import pytest

from shoal.kernel.errors import ConfigError, InvalidInput
from shoal.kernel.home import Home
from shoal.kernel.messages import ModelInfo, Usage
from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.settings import ProviderSettings
from shoal.models.catalog import (
    Catalog,
    ModelListing,
    address_of,
    build_provider,
    discover,
    read_listings,
    write_listings,
)
from shoal.models.model_table import MODELS, known_quirks, model_row
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel, FakeSettings

USE = Usage(1000, 100, 500)


Named = tuple[str, ProviderSettings]


def catalog(tmp_path: Path, *settings: Named, extra: tuple[FakeModel, ...] = ()) -> Catalog:
    return Catalog(dict(settings), home=Home(tmp_path), clock=ManualClock(), environ={}, extra=extra)


def provider(name: str, kind: str = "openai", base_url: str = "", key: Secret = NO_SECRET) -> Named:
    return name, ProviderSettings(kind=kind, base_url=base_url, api_key=key, model_file="m.gguf")


def openai(name: str = "openai", base_url: str = "") -> Named:
    return provider(name, base_url=base_url)


def test_a_provider_before_the_slash_is_used_as_named(tmp_path: Path) -> None:
    models = catalog(tmp_path, openai(), openai("router", base_url="https://openrouter.ai/api/v1"))
    route = models.route("router/anthropic/claude-sonnet-5.5")
    assert (route.provider.name, route.model) == ("router", "anthropic/claude-sonnet-5.5")
    assert route.context_tokens == 1_000_000
    assert models.route("openai/anything-at-all").context_tokens == 0


def test_a_bare_name_selects_the_first_provider_that_lists_it(tmp_path: Path) -> None:
    write_listings(
        tmp_path / "available_models.json",
        {
            "one": ModelListing(True, ("a",)),
            "two": ModelListing(True, ("a", "org/b"), context_tokens={"org/b": 77}, max_output_tokens={"org/b": 7}),
        },
    )
    models = catalog(tmp_path, openai("one"), openai("two"))
    assert models.route("a").provider.name == "one"
    route = models.route("org/b")
    assert (route.provider.name, route.context_tokens, route.max_output_tokens) == ("two", 77, 7)
    assert models.names() == ["one/a", "two/a", "two/org/b", "demo"]


def test_a_well_known_model_uses_its_own_service_before_any_listing(tmp_path: Path) -> None:
    models = catalog(tmp_path, openai("azure"), provider("anthropic", "anthropic"), provider("gemini", "gemini"))
    assert models.route("claude-sonnet-5-5").provider.name == "anthropic"
    assert models.route("gemini-3.8-flash").provider.name == "gemini"
    assert models.route("gpt-5").provider.name == "azure"


def test_the_only_provider_accepts_any_name_before_it_lists_models(tmp_path: Path) -> None:
    assert catalog(tmp_path, openai("mine")).route("my-model").provider.name == "mine"
    write_listings(tmp_path / "available_models.json", {"mine": ModelListing(True, ("other",))})
    with pytest.raises(InvalidInput, match="mine/other"):
        catalog(tmp_path, openai("mine")).route("my-model")


@pytest.mark.parametrize("name", ["nope", "", "demo/", "/x", "a/b/c"])
def test_an_unknown_name_says_what_is_configured(tmp_path: Path, name: str) -> None:
    models = catalog(tmp_path, openai("one"), openai("two"))
    with pytest.raises(InvalidInput, match="Specify other models of one, two"):
        models.route(name)


def test_the_demo_model_is_always_available(tmp_path: Path) -> None:
    models = catalog(tmp_path)
    assert models.route("demo").provider.name == models.route("demo/demo").provider.name == "demo"
    assert models.names() == ["demo"]


def test_a_provider_of_an_extension_is_routed_to_like_any_other(tmp_path: Path) -> None:
    models = catalog(tmp_path, extra=(FakeModel(name="fake"),))
    route = models.route("fake/fake-1")
    assert route.provider.name == "fake"
    assert models.usd(route, USE) is None


def test_prices_are_known_or_unknown_but_never_guessed(tmp_path: Path) -> None:
    pytest.importorskip("genai_prices", reason="the extra prices is not installed")
    models = catalog(
        tmp_path,
        openai(),
        openai("behind-proxy", base_url="http://127.0.0.1:4000/v1"),
        openai("ollama", base_url="http://127.0.0.1:11434/v1"),
        provider("local", "local"),
    )
    known = models.usd(models.route("openai/gpt-5"), USE)
    assert known == pytest.approx(500 * 1.25e-6 + 500 * 0.125e-6 + 100 * 10e-6)
    assert models.usd(models.route("behind-proxy/gpt-5"), USE) == known
    assert models.usd(models.route("openai/no-such-model-9"), USE) is None
    for free in ("ollama/qwen9", "local/m"):
        assert models.usd(models.route(free), USE) == 0.0


def test_a_configured_price_overrides_every_list(tmp_path: Path) -> None:
    models = catalog(
        tmp_path,
        ("openai", ProviderSettings(kind="openai", price=0.0)),
        (
            "lab",
            ProviderSettings(
                kind="openai",
                base_url="http://192.168.1.5:8000/v1",
                price={"input": 2.0, "output": 8.0, "cached": 0.5},
                prices={"small": 1.0, "free": 0.0},
            ),
        ),
        openai("other", base_url="http://192.168.1.5:8001/v1"),
    )
    use = Usage(input_tokens=1_000_000, output_tokens=500_000, cached_tokens=400_000)
    prices = {
        name: models.usd(models.route(name), use) for name in ("openai/gpt-5", "lab/big", "lab/small", "lab/free")
    }
    assert prices == {"openai/gpt-5": 0.0, "lab/big": pytest.approx(1.2 + 0.2 + 4.0), "lab/small": 1.5, "lab/free": 0.0}
    assert models.usd(models.route("other/big"), use) is None


def test_the_demo_model_is_free_under_a_dollar_limit(tmp_path: Path) -> None:
    models = catalog(tmp_path)
    assert models.usd(models.route("demo"), USE) == 0


def test_the_catalog_file_has_its_documented_form(tmp_path: Path) -> None:
    path = tmp_path / "available_models.json"
    listings = {
        "a": ModelListing(True, ("m1", "m2"), "", "2026-01-01T00:00:00.000Z"),
        "b": ModelListing(False, (), "No key."),
    }
    write_listings(path, listings)
    data = json.loads(path.read_text())
    assert data["a"] == {"valid": True, "models": ["m1", "m2"], "checked_at": "2026-01-01T00:00:00.000Z"}
    assert data["b"] == {"valid": False, "models": [], "error": "No key."}
    assert read_listings(path) == listings
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 3}', b"\xff"])
def test_a_damaged_file_is_treated_as_missing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "available_models.json").write_bytes(content)
    assert catalog(tmp_path, openai("mine")).route("x").provider.name == "mine"


async def test_refresh_asks_every_provider_and_reports_failures(tmp_path: Path) -> None:
    good = FakeModel(settings=FakeSettings(api_key="right-key", models=("m1", "m2"), context_tokens=9000))
    async with good.serve() as url:
        models = catalog(
            tmp_path,
            openai("good", base_url=f"{url}/v1"),
            provider("claude", "anthropic", url, Secret("value", "right-key")),
            provider("wrong", "openai", f"{url}/v1", Secret("value", "other-key")),
            provider("unset", "openai", f"{url}/v1", Secret("env", "UNSET", environ={})),
            openai("gone", base_url="http://127.0.0.1:9/v1"),
        )
        assert models.route("claude/m2").context_tokens == 0
        found = await models.refresh()
        route = models.route("claude/m2")
        assert models.route("m2") == route
        await models.close()
    assert {name: listing.valid for name, listing in found.items()} == {
        "good": False,
        "claude": True,
        "wrong": False,
        "unset": False,
        "gone": False,
    }
    assert (route.provider.name, route.context_tokens) == ("claude", 9000)
    assert "UNSET" in found["unset"].error
    assert "other-key" not in found["wrong"].error
    written = json.loads((tmp_path / "available_models.json").read_text())
    assert written["claude"]["models"] == ["m1", "m2"]
    assert "demo" not in written


async def test_known_models_are_kept_while_a_provider_is_down(tmp_path: Path) -> None:
    write_listings(tmp_path / "available_models.json", {"gone": ModelListing(True, ("m1",))})
    models = catalog(tmp_path, openai("gone", base_url="http://127.0.0.1:9/v1"))
    found = await models.refresh()
    assert found["gone"].models == ("m1",)
    assert found["gone"].error
    assert models.route("m1").provider.name == "gone"


async def test_a_provider_that_never_answers_does_not_delay_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(FakeModel):
        async def models(self) -> list[ModelInfo]:
            await asyncio.Event().wait()
            return []

    found = await discover([Silent(name="silent"), FakeModel(name="quick")], {}, ManualClock(), 0.01)
    assert found["quick"].valid
    assert not found["silent"].valid
    assert "silent" in found["silent"].error


async def test_a_file_that_cannot_be_written_is_not_fatal(tmp_path: Path) -> None:
    models = catalog(tmp_path / "absent", extra=(FakeModel(),))
    assert (await models.refresh())["fake"].models == ("fake-1",)


def test_every_row_of_the_table_is_used_and_valid() -> None:
    for row in MODELS:
        example = row.pattern.replace("[678]", "7").replace("[5-9]", "7").replace("[456]", "6").replace("[6-9]", "8")
        example = example.replace("[134]", "3").replace("[123]", "2").replace("*", "x")
        assert model_row(example) is row, example
        assert 0 < row.output_tokens <= row.context_tokens


@pytest.mark.parametrize(
    ("model", "context"),
    [("gpt-4o-mini", 128_000), ("openai/gpt-5.5", 1_000_000), ("gpt-5", 400_000), ("o3-mini", 200_000),
     ("claude-3-5-haiku-latest", 200_000), ("claude-opus-4-1", 200_000), ("claude-sonnet-4.6", 1_000_000),
     ("models/gemini-3.8-flash", 1_000_000), ("claude-haiku-5-5", 1_000_000), ("Llama-3.3-70B", 131_072)],
)  # fmt: skip
def test_well_known_models_have_their_windows(model: str, context: int) -> None:
    row = model_row(model)
    assert row is not None
    assert row.context_tokens == context


def test_quirks_come_from_the_server_and_the_model() -> None:
    official = known_quirks("https://api.openai.com/v1", "gpt-5")
    assert (official.max_tokens, official.temperature, official.cache_key) == ("max_completion_tokens", False, True)
    elsewhere = known_quirks("http://127.0.0.1:8080/v1", "my-model")
    assert (elsewhere.max_tokens, elsewhere.temperature, elsewhere.cache_key) == ("max_tokens", True, False)


def test_an_unknown_kind_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="anthropic, openai, openai-responses, gemini, local"):
        build_provider("x", ProviderSettings(kind="carrier-pigeon"), ManualClock(), {})


@pytest.mark.parametrize(
    ("kind", "given", "used"),
    [("anthropic", "", "https://api.anthropic.com"), ("anthropic", "http://h/v1/", "http://h"),
     ("openai", "http://h/v1/", "http://h/v1"), ("openai-responses", "", "https://api.openai.com/v1")],
)  # fmt: skip
def test_addresses_are_accepted_with_and_without_their_endings(kind: str, given: str, used: str) -> None:
    assert address_of(ProviderSettings(kind=kind, base_url=given)) == used
