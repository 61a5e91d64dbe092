"""The embeddings model that `recall.model` names."""

import os
from pathlib import Path

import pytest

from shoal.features.recall.embeddings import build_embeddings
from shoal.kernel.errors import ConfigError
from shoal.kernel.settings import ProviderSettings
from shoal.testing.clock import ManualClock


@pytest.mark.parametrize(
    ("model", "kind"), [("nobody/x", "openai"), ("fakes", "openai"), ("fakes/x", "anthropic"), ("fakes/", "openai")]
)
def test_a_provider_without_embeddings_is_reported_at_startup(model: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=r"recall\.model"):
        build_embeddings(model, {"fakes": ProviderSettings(kind=kind)}, ManualClock(), os.environ, Path())
