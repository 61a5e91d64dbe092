"""Deriving the kind of a failure from each provider's error messages."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unit.models.overflows import LOAD, OTHER_REFUSALS, OVERFLOWS, RATE_LIMITS, WINDOWS, WITHOUT_WINDOW

from shoal.kernel.clock import ASKED_SECONDS_MAX
from shoal.kernel.messages import FailureKind
from shoal.models.failures import WORDS_CHARS_MAX, failure_in_stream, failure_of, redact
from shoal.text.secret_forms import is_ordinary

REFUSALS: list[tuple[int, str, FailureKind]] = [
    (401, '{"error":{"message":"Incorrect API key provided","code":"invalid_api_key"}}', "auth"),
    (403, '{"error":{"message":"no access"}}', "auth"),
    (400, '{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.",'
          '"status":"INVALID_ARGUMENT",'
          '"details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID"}]}}', "auth"),
    (429, '{"error":{"message":"You exceeded your current quota, please check your plan","code":"insufficient_quota"}}',
     "quota"),
    (400, '{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}',
     "quota"),
    (402, '{"error":{"message":"Insufficient credits","code":402}}', "quota"),
    (429, '{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"You exceeded your current quota.",'
          '"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}]}}', "rate_limited"),
    (429, '{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"You exceeded your current quota.",'
          '"details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"ReqPerDay"}]},'
          '{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34s"}]}}', "quota"),
    (413, '{"error":{"message":"Request too large for model on tokens per minute (TPM): Limit 6000",'
          '"code":"rate_limit_exceeded"}}', "rate_limited"),
    (429, '{"error":{"message":"Overloaded, slow down"}}', "overloaded"),
    (529, '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "overloaded"),
    (503, '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', "overloaded"),
    (503, "", "overloaded"),
    (500, '{"error":{"message":"The server is busy"}}', "overloaded"),
    (500, "<html>Internal Server Error</html>", "server_error"),
    (502, "", "server_error"),
    (520, "<html>", "server_error"),
    (504, "upstream request timeout", "timeout"),
    (524, "<html>", "timeout"),
    (408, "{}", "timeout"),
    (400, '{"error":{"message":"Response filtered: content management policy","code":"content_filter"}}',
     "content_filter"),
    (403, '{"code":"May not","error":"Your team has used all available credits or reached its monthly spending '
          'limit."}', "quota"),
    (403, '{"code":"Arrearage","message":"Please make sure your account is in good standing."}', "quota"),
    (403, '{"error":{"code":403,"message":"Quota exceeded for requests per minute"}}', "rate_limited"),
    (403, '{"error":{"message":"Your input was flagged","code":403,"metadata":{"reasons":["violence"]}}}',
     "content_filter"),
    (404, '{"error":{"message":"model not found"}}', "invalid_request"),
    (400, '{"error":{"message":"messages[3] is malformed","details":"text, not a list"}}', "invalid_request"),
    (422, '{"detail":[{"loc":["body"],"msg":"field required"}]}', "invalid_request"),
    (400, "[{\"error\":{\"code\":400,\"message\":\"in a list\"}}]", "invalid_request"),
]  # fmt: skip


SHAPES = (
    '{"error":{"message":%s,"type":"invalid_request_error","code":null}}',
    '{"type":"error","error":{"type":"invalid_request_error","message":%s}}',
    '{"object":"error","message":%s,"type":"BadRequestError","param":null,"code":400}',
    '[{"error":{"code":400,"message":%s,"status":"INVALID_ARGUMENT"}}]',
    '{"error":%s}',
    '{"detail":%s}',
    '{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":%s,"provider_name":"Mine"}}}',
)


@pytest.mark.parametrize(("status", "words"), LOAD)
def test_overload_is_not_a_context_overflow(status: int, words: str) -> None:
    body = json.dumps({"error": {"message": words}}).encode()
    assert failure_of(status, body, {}, "p").kind in ("overloaded", "rate_limited", "quota")


@pytest.mark.parametrize(("provider", "words"), [(name, words) for name in OVERFLOWS for words in OVERFLOWS[name]])
def test_every_wording_of_a_context_overflow_is_recognized(provider: str, words: str) -> None:
    assert provider in OVERFLOWS
    for shape in SHAPES:
        for said in (words, words.upper(), words.lower()):
            body = (shape % json.dumps(said)).encode()
            for status in (400, 413, 422, 500, 503):
                assert failure_of(status, body, {}, "mine").kind == "context_overflow", (status, body)
            assert failure_in_stream(body, "mine").kind == "context_overflow", body


def test_the_window_stated_in_a_refusal_is_read() -> None:
    stated = {
        words: failure_of(400, (SHAPES[0] % json.dumps(words)).encode(), {}, "mine").window_tokens
        for every in OVERFLOWS.values()
        for words in every
    }
    assert {words for words, tokens in stated.items() if not tokens} == WITHOUT_WINDOW
    for words, tokens in stated.items():
        assert tokens in WINDOWS or words in WITHOUT_WINDOW, (words, tokens)
    assert failure_of(400, b'{"error":{"message":"limit of 7 tools"}}', {}, "mine").window_tokens == 0


@pytest.mark.parametrize("words", RATE_LIMITS)
def test_a_token_rate_limit_is_not_a_context_overflow(words: str) -> None:
    for shape in SHAPES:
        failed = failure_of(429, (shape % json.dumps(words)).encode(), {}, "mine")
        assert failed.kind in ("rate_limited", "quota"), words


@pytest.mark.parametrize("words", OTHER_REFUSALS)
def test_a_refusal_independent_of_length_is_not_an_overflow(words: str) -> None:
    for shape in SHAPES:
        assert failure_of(400, (shape % json.dumps(words)).encode(), {}, "mine").kind == "invalid_request", words


def test_zhipus_overflow_code_is_recognized_without_text() -> None:
    assert failure_of(400, b'{"error":{"code":"1261","message":"?"}}', {}, "mine").kind == "context_overflow"


@pytest.mark.parametrize(("status", "body", "kind"), REFUSALS)
def test_each_refusal_has_a_failure_kind(status: int, body: str, kind: FailureKind) -> None:
    failed = failure_of(status, body.encode(), {}, "mine")
    assert failed.kind == kind
    assert "mine" in failed.message
    assert "<html" not in failed.message


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "overloaded"),
        ('{"error":{"message":"Provider returned error","code":429}}', "rate_limited"),
        ('{"error":{"code":"rate_limit_exceeded","message":"Try again in 1.5s."}}', "rate_limited"),
        ('{"type":"error","code":"context_length_exceeded","message":"too long","param":null}', "context_overflow"),
        ('{"error":{"message":"what?"}}', "server_error"),
    ],
)
def test_errors_inside_a_stream_have_their_kind(body: str, kind: FailureKind) -> None:
    assert failure_in_stream(body.encode(), "mine").kind == kind


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("Please try again in 20s.", 20.0),
        ("try again in 6m0s", 360.0),
        ("Please retry in 500ms.", 0.5),
        ("later", None),
    ],
)
def test_a_wait_in_the_text_is_used_without_a_header(words: str, seconds: float | None) -> None:
    body = '{"error":{"message":"Rate limit reached. ' + words + '"}}'
    assert failure_of(429, body.encode(), {}, "mine").retry_after_seconds == seconds


def test_the_wait_in_retry_info_is_used() -> None:
    assert failure_of(*_retry_info(), {}, "mine").retry_after_seconds == 34.5


def _retry_info() -> tuple[int, bytes]:
    return REFUSALS[6][0], REFUSALS[6][1].encode()


@given(st.text(st.characters(categories=["L", "N"]), min_size=8, max_size=40), st.text(max_size=600))
def test_no_key_and_no_control_character_reaches_a_person(key: str, words: str) -> None:
    assume(not is_ordinary(key))
    told = redact(f"{words} {key} sk-abcdefghijk AIzaSyA1234567890123456789 Bearer abcdef.ghijkl {words}", (key,))
    assert key not in told
    assert "abcdefghijk" not in told
    assert len(told) <= WORDS_CHARS_MAX
    assert not any(character < " " or character == "\x7f" for character in told)


NUMBERS = st.text("0123456789²٣", min_size=1, max_size=5000)


@given(st.integers(200, 599), NUMBERS, st.lists(st.tuples(NUMBERS, st.sampled_from(["ms", "s", "m", "h", ""]))))
def test_huge_numbers_are_accepted_as_codes_and_waits(status: int, code: str, spans: list[tuple[str, str]]) -> None:
    words = f"Overloaded, try again in {''.join(number + unit for number, unit in spans)}"
    for body in ({"message": words, "code": code}, {"message": words, "details": [{"retryDelay": words}]}):
        for failed in (
            failure_of(status, json.dumps({"error": body}).encode(), {}, "mine"),
            failure_in_stream(json.dumps({"error": body}).encode(), "mine"),
        ):
            assert 0 <= (failed.retry_after_seconds or 0) <= ASKED_SECONDS_MAX


@given(st.integers(400, 599), st.binary(max_size=300))
def test_any_answer_can_be_classified(status: int, body: bytes) -> None:
    assert failure_of(status, body, {}, "mine").message
    assert failure_in_stream(body, "mine").message
