"""What scenarios share: the stands that a scenario runs on, one after the other."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.scenarios.more_stands import MORE
from tests.scenarios.stands import Stand, stand_of


@pytest.fixture(params=("fake", "telegram", "discord"))
async def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stand]:
    """A platform that is there; `parametrize("stand", …, indirect=True)` names others."""
    files: Path = tmp_path_factory.mktemp("files")
    more = MORE.get(request.param)
    made = more(files) if more is not None else stand_of(request.param, files)
    await made.start()
    yield made
    await made.stop()
