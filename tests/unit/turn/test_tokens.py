"""Estimated, corrected and exact token counts."""

import pytest

from shoal.kernel.ids import CallId
from shoal.kernel.messages import (
    AssistantMessage,
    Opaque,
    ToolCall,
    ToolSpec,
)
from shoal.turn.tokens import (
    ESTIMATES,
    MESSAGE_UNITS,
    Calibration,
    Meter,
    can_count_exactly,
    encoding_of,
    estimate,
    exact,
    meter_as_set,
)


def test_estimated_tokens_are_a_quarter_of_the_bytes() -> None:
    assert [estimate(text) for text in ("", "a", "abcd", "abcde", "éé", "語")] == [0, 1, 1, 2, 1, 1]


def test_system_texts_are_counted_once_and_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.turn.tokens._TEXTS_CHARS_MAX", 1000)
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 1

    meter = Meter(count)
    first, others = "a" * 400, [letter * 400 for letter in "bcd"]
    for text in (first, first, *others, first):
        meter.prefix(text, ())
    assert counted == [first, *others, first]


def test_cached_texts_are_counted_once() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 1

    meter = Meter(count)
    for text in ("one", "two", "one", "two"):
        meter.prefix(text, ())
    assert counted == ["one", "two"]


def test_estimates_need_no_tokenizer() -> None:
    assert meter_as_set("estimate", "gpt-4o") is ESTIMATES


def test_calls_and_opaque_parts_are_counted() -> None:
    call = ToolCall(CallId("1"), "bash", "x" * 40)
    bare, full = AssistantMessage(""), AssistantMessage("", (call,), Opaque("thinking", "y" * 400))
    assert Meter().message(full) - Meter().message(bare) == 100 + 8 + 1 + 10
    assert Meter().prefix("s" * 40, (ToolSpec("bash", "d" * 8, "{}"),)) == MESSAGE_UNITS + 10 + 8 + 1 + 2 + 1


def test_a_model_is_calibrated_by_reported_usage() -> None:
    calibration = Calibration()
    assert calibration.factor("m") == 1.0
    calibration.learn("m", 1000, 1300)
    assert calibration.factor("m") == 1.3
    calibration.learn("m", 1000, 800)
    assert calibration.factor("m") == pytest.approx(1.2)
    calibration.learn("m", 1000, 2000)
    assert calibration.factor("m") == 2.0
    calibration.learn("m", 10, 10_000)
    assert calibration.factor("m") == 2.0
    assert calibration.factor("other") == 1.0


def test_calibration_is_bounded_in_number_and_in_size() -> None:
    calibration = Calibration(models_max=2)
    for name in "abc":
        calibration.learn(name, 1000, 100_000)
    assert [calibration.factor(name) for name in "abc"] == [1.0, 4.0, 4.0]


def test_a_model_name_selects_its_encoding() -> None:
    assert encoding_of("openai/gpt-4o-mini") == "o200k_base"
    assert encoding_of("gpt-4-turbo") == "cl100k_base"
    assert encoding_of("ollama/qwen3") == "o200k_base"


@pytest.mark.skipif(not can_count_exactly(), reason="the extra `tokens` is not installed")
def test_exact_counts_match_the_published_tokenizers() -> None:
    count = exact("o200k_base")
    assert [count(text) for text in ("", "hello world", "tiktoken is great!", "お誕生日おめでとう")] == [0, 2, 6, 8]
    assert exact("cl100k_base")("お誕生日おめでとう") == 9
    assert count("x" * 1_000_000) <= 125_001
