"""Recall with a real embedding model."""

import subprocess

import pytest
from tests.tidy.source import ROOT


@pytest.mark.slow
async def test_a_real_model_finds_nine_of_ten_paraphrases_among_1000_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the weights that a package carries. `python -m bench.recall` measures the time."""
    made = subprocess.run(  # noqa: ASYNC221 (nothing else waits)
        [ROOT / "scripts" / "recall-model.sh"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(made.stderr)
    monkeypatch.syspath_prepend(str(ROOT / "build" / "recall-model" / "python"))
    from bench.recall import MODEL, measure

    found = await measure(ROOT / MODEL)
    assert found["paraphrases found first, of 50"] >= 45
    assert found["of 50 questions unlike any note, those that find something"] <= 5
    assert found["found first, of 90"] == found["the same by comparing all vectors as they came"]
