"""What [context] makes of the counting of tokens."""

import pytest

from shoal.domain.errors import ShoalError
from shoal.turn import budget
from shoal.turn.budget import can_count_exactly, meter_of

WORDS = "お誕生日おめでとう"


async def test_tokens_are_estimated_by_default() -> None:
    assert (await meter_of("estimate", "")).count(WORDS) == 7


@pytest.mark.skipif(not can_count_exactly(), reason="the extra `tokens` is not installed")
@pytest.mark.parametrize(("model", "count"), [("openai/gpt-4o", 8), ("openai/gpt-4-turbo", 9)])
async def test_tokens_are_counted_with_the_models_vocabulary_if_wanted(model: str, count: int) -> None:
    assert (await meter_of("exact", model)).count(WORDS) == count


async def test_exact_counts_without_their_extra_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "can_count_exactly", lambda: False)
    with pytest.raises(ShoalError, match=r"extra `tokens`. Run: "):
        await meter_of("exact", "")
