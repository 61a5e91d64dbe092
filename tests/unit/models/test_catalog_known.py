"""Checking model names and API keys against the models that providers list."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.kernel.errors import InvalidInput
from shoal.kernel.home import Home
from shoal.kernel.settings import ProviderSettings
from shoal.models.catalog import Catalog, existing_model, key_lines, model_names
from shoal.testing.clock import ManualClock

LISTINGS = '{"acme": {"valid": true, "models": ["big-1", "small-1"]}, "new": {"valid": false, "models": []}}'


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    file = tmp_path / "available_models.json"
    file.write_text(LISTINGS)
    settings = ProviderSettings(kind="openai", base_url="http://127.0.0.1:9/v1")
    made = Catalog({"acme": settings, "new": settings}, home=Home(tmp_path), clock=ManualClock(), environ={})
    yield made
    await made.close()


def test_an_unlisted_model_is_refused_with_the_nearest_name(catalog: Catalog) -> None:
    existing_model(catalog, "acme/big-1")
    existing_model(catalog, "small-1")
    existing_model(catalog, "demo")
    with pytest.raises(InvalidInput, match=r"offer the model 'big-l'.*Similar names: big-1"):
        existing_model(catalog, "acme/big-l")
    with pytest.raises(InvalidInput, match="No provider has the model"):
        existing_model(catalog, "nosuch/x")


def test_any_model_of_a_provider_without_a_list_is_accepted(catalog: Catalog) -> None:
    existing_model(catalog, "new/anything")


async def test_each_provider_with_a_key_is_asked_and_reported_in_one_line(catalog: Catalog) -> None:
    lines = await key_lines(catalog)
    assert [line.split(":")[0] for line in lines] == ["- acme", "- new"]
    assert not any("ok" in line for line in lines), "nobody answers at that address"
    assert "acme/big-1" in model_names(catalog)
