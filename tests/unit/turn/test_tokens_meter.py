"""The effect of [context] settings on token counting."""

import pytest

from shoal.kernel.errors import ShoalError
from shoal.turn import tokens
from shoal.turn.tokens import can_count_exactly, meter_as_set

WORDS = "お誕生日おめでとう"


def test_tokens_are_estimated_by_default() -> None:
    assert meter_as_set("estimate", "").count(WORDS) == 7


@pytest.mark.skipif(not can_count_exactly(), reason="the extra `tokens` is not installed")
@pytest.mark.parametrize(("model", "count"), [("openai/gpt-4o", 8), ("openai/gpt-4-turbo", 9)])
def test_tokens_are_counted_with_the_models_vocabulary_if_configured(model: str, count: int) -> None:
    assert meter_as_set("exact", model).count(WORDS) == count


def test_exact_counts_without_their_extra_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "can_count_exactly", lambda: False)
    with pytest.raises(ShoalError, match=r"`tokens` extra. Run: "):
        meter_as_set("exact", "")
