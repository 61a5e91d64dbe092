"""A small real model that runs in the test process, without a key or network. `scripts/local-model.sh` installs
its weights.
"""

import subprocess
from pathlib import Path

import pytest

from shoal.kernel.errors import ProviderDown
from shoal.kernel.messages import ModelDone, ModelFailed, ModelRequest, TextDelta, UserMessage
from shoal.kernel.settings import ProviderSettings
from shoal.models.catalog import build_provider
from shoal.models.local import threads
from shoal.testing.clock import ManualClock

ROOT = Path(__file__).resolve().parents[2]
HELLO = ModelRequest("any", "You are terse.", (UserMessage("Say hello."),), max_output_tokens=16)


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Path:
    setup = subprocess.run([ROOT / "scripts" / "local-model.sh"], capture_output=True, text=True, check=False)
    if setup.returncode:
        pytest.skip(setup.stderr.strip())
    monkeypatch.syspath_prepend(str(ROOT / "build" / "local-model" / "python"))
    return ROOT / "build" / "local-model" / "model.gguf"


@pytest.mark.slow
async def test_a_local_model_answers_without_key_and_network(weights: Path) -> None:
    environ = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    provider = build_provider("local", ProviderSettings(kind="local", model_file=str(weights)), ManualClock(), environ)
    try:
        assert [model.id for model in await provider.models()] == ["model"]
        events = [event async for event in provider.stream(HELLO)]
    finally:
        await provider.close()
    done = events[-1]
    assert isinstance(done, ModelDone), done
    assert done.message.text == "".join(event.text for event in events if isinstance(event, TextDelta))
    assert done.message.text.strip()
    assert 0 < done.usage.output_tokens <= 16


@pytest.mark.slow
async def test_a_file_that_is_not_a_model_fails_clearly(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.gguf").write_text("not a model")
    settings = ProviderSettings(kind="local", model_file=str(tmp_path / "notes.gguf"))
    events = [event async for event in build_provider("local", settings, ManualClock(), {}).stream(HELLO)]
    assert isinstance(events[-1], ModelFailed)
    assert "notes.gguf as a GGUF model" in events[-1].message


@pytest.mark.slow
async def test_a_missing_file_is_noticed_without_loading(weights: Path, tmp_path: Path) -> None:
    settings = ProviderSettings(kind="local", model_file=str(tmp_path / "gone.gguf"))
    with pytest.raises(ProviderDown, match="model_file"):
        await build_provider("local", settings, ManualClock(), {}).models()


def test_one_core_stays_free_for_other_work() -> None:
    assert threads() >= 1
