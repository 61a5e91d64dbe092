"""Fixtures for scenarios that run once per platform."""

from collections.abc import AsyncIterator

import pytest
from tests.postgres import postgres_database
from tests.scenarios.stands import Stand, stand_of

__all__ = ["postgres_database"]


@pytest.fixture(params=("fake", "telegram", "discord"))
async def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stand]:
    """A running platform. `parametrize("stand", …, indirect=True)` selects other platforms."""
    made = stand_of(request.param, tmp_path_factory.mktemp("files"))
    await made.start()
    yield made
    await made.stop()
