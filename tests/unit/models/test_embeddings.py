"""Text embeddings from each kind of provider that offers them, over HTTP."""

import math
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from shoal.kernel.errors import ProviderDown, ProviderRefused
from shoal.kernel.ports import Embeddings
from shoal.kernel.secret import Secret
from shoal.kernel.settings import ProviderSettings
from shoal.models.catalog import model_endpoint
from shoal.models.embeddings import HttpEmbeddings
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel
from shoal.testing.model.fake import FakeSettings

TEXTS = ("the berth costs ten crowns", "berthing costing", "tea is good")


@asynccontextmanager
async def embedder(kind: str, url: str, key: str = "") -> AsyncGenerator[Embeddings]:
    base = f"{url}/v1beta" if kind == "gemini" else f"{url}/v1"
    settings = ProviderSettings(kind=kind, base_url=base, api_key=Secret("value", key))
    found = HttpEmbeddings(model_endpoint("fakes", "embed-1", settings, ManualClock(), os.environ))
    try:
        yield found
    finally:
        await found.close()


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


@pytest.mark.parametrize("kind", ["openai", "openai-responses", "gemini"])
async def test_each_kind_returns_one_vector_per_text_in_order(kind: str) -> None:
    async with FakeModel().serve() as url, embedder(kind, url) as found:
        assert found.name == "fakes/embed-1"
        berth, berthing, tea = await found.embed(TEXTS)
        assert cosine(berth, berthing) > cosine(berth, tea)
        assert await found.embed([TEXTS[2]]) == [tea]


@pytest.mark.parametrize("kind", ["openai", "gemini"])
async def test_an_invalid_key_is_reported_without_showing_it(kind: str) -> None:
    async with FakeModel(settings=FakeSettings(api_key="right")).serve() as url:
        async with embedder(kind, url, "wrong-and-secret") as found:
            with pytest.raises(ProviderRefused) as refused:
                await found.embed(TEXTS)
            assert "wrong-and-secret" not in str(refused.value)
        async with embedder(kind, url, "right") as found:
            assert len(await found.embed(TEXTS)) == 3


async def test_an_unreachable_server_is_reported_as_down() -> None:
    async with FakeModel().serve() as url:
        pass
    async with embedder("openai", url) as found:
        with pytest.raises(ProviderDown):
            await found.embed(TEXTS)
