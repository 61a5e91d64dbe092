"""Recall with a real embedding model."""

import subprocess

import pytest
from tests.tidy.source import ROOT


@pytest.mark.slow
async def test_a_real_model_finds_nine_of_ten_paraphrases_among_1000_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the weights that a Python package contains. `python -m bench.recall` measures the time."""
    setup = subprocess.run(  # noqa: ASYNC221 (nothing else waits)
        [ROOT / "scripts" / "recall-model.sh"], capture_output=True, text=True, check=False
    )
    if setup.returncode:
        pytest.skip(setup.stderr)
    monkeypatch.syspath_prepend(str(ROOT / "build" / "recall-model" / "python"))
    from bench.recall import MODEL, measure

    measurement = await measure(ROOT / MODEL)
    assert measurement["paraphrases found first, of 50"] >= 45
    assert measurement["unrelated questions that find something, of 50"] <= 5
    assert measurement["found first, of 90"] == measurement["the same, comparing all full-precision vectors"]
