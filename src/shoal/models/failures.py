"""Convert a provider's error response, in any form, to a failure kind and a sentence for the user."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from shoal.kernel.clock import ASKED_SECONDS_MAX, Clock, retry_after
from shoal.kernel.messages import RETRYABLE, FailureKind, ModelFailed
from shoal.kernel.untrusted import UNREADABLE
from shoal.models.quirks import teaches
from shoal.text.secret_forms import is_ordinary

WORDS_CHARS_MAX = 400
COMPLAINT_CHARS_MAX = 4 * WORDS_CHARS_MAX


class _ErrorDetail(msgspec.Struct, rename="camel"):
    retry_delay: str = ""
    reason: str = ""
    violations: msgspec.Raw = msgspec.Raw(b"[]")


class _ErrorMetadata(msgspec.Struct):
    raw: str | None = None
    provider_name: str | None = None


class _ErrorDocument(msgspec.Struct):
    message: str | None = None
    type: str | None = None
    code: str | int | float | None = None
    status: str | int | None = None
    details: list[_ErrorDetail] | None = None
    metadata: _ErrorMetadata | None = None


class _LooseError(msgspec.Struct):
    message: str | None = None
    type: str | None = None


_NULL = msgspec.Raw(b"null")


class _ErrorBody(msgspec.Struct):
    error: msgspec.Raw = _NULL
    message: msgspec.Raw = _NULL
    detail: msgspec.Raw = _NULL


class _Whole(_ErrorBody):
    """Fields that show whether a JSON document is an error or a response."""

    errors: msgspec.Raw = _NULL
    object: msgspec.Raw = _NULL
    choices: msgspec.Raw = msgspec.Raw(b"")
    candidates: msgspec.Raw = msgspec.Raw(b"")
    output: msgspec.Raw = msgspec.Raw(b"")
    content: msgspec.Raw = msgspec.Raw(b"")

    @property
    def is_error(self) -> bool:
        if any(bytes(field) != b"null" for field in (self.error, self.errors)) or bytes(self.object) == b'"error"':
            return True
        is_answer = any(map(bytes, (self.choices, self.candidates, self.output, self.content)))
        return not is_answer and (bytes(self.message)[:1] == b'"' or bytes(self.detail) != b"null")


class _Complaint(NamedTuple):
    """An error message from a provider. `codes` are in lower case."""

    words: str
    codes: frozenset[str]
    retry_after_seconds: float | None = None
    daily: bool = False


_STATUS_OF_CODE = {
    "overloaded_error": 529, "rate_limit_error": 429, "api_error": 500, "invalid_request_error": 400,
    "authentication_error": 401, "permission_error": 403, "not_found_error": 404, "request_too_large": 413,
    "timeout_error": 504, "billing_error": 402, "server_error": 500, "rate_limit_exceeded": 429,
    "insufficient_quota": 429, "resource_exhausted": 429, "unavailable": 503, "internal": 500,
    "deadline_exceeded": 504, "invalid_argument": 400, "unauthenticated": 401, "permission_denied": 403,
    "context_length_exceeded": 400, "invalid_api_key": 401,
}  # fmt: skip
_KIND_OF_STATUS: dict[int, FailureKind] = {
    302: "unreachable", 303: "unreachable", 307: "unreachable", 401: "auth", 402: "quota", 403: "auth",
    408: "timeout", 409: "overloaded", 425: "overloaded", 429: "rate_limited", 498: "overloaded", 499: "overloaded",
    503: "overloaded", 504: "timeout", 522: "timeout", 524: "timeout", 529: "overloaded",
}  # fmt: skip
_OTHERWISE_MEANT = frozenset({401, 402, 403, 407, 408, 409, 425, 429, 529})
"""Statuses whose meaning does not depend on the error text."""
_STATUS = re.compile(r"[1-5][0-9][0-9]")
_OVERFLOW = re.compile(
    r"""context[ _-](window|length|size|limit)\b[^.]{0,60}(exceed|overflow)
    | (exceed\w{0,9}|longer\ than|greater\ than|larger\ than)\ [^.]{0,50}context[ _-](window|length|size|limit)
    | context[ _](length|window|size)[ _]exceeded | context_?window_?exceeded | exceed_context_size
    | max_prompt_tokens_exceeded | request_too_large | context(\ the)?\ overflow | configured\ context\ size
    | maximum\ (allowed\ )?(context|prompt|model|input)\ length | max\ length\ exceeded | exceeds?\ max\ length
    | (prompt|inputs?|messages|conversation)(\ length)?(\ \([^()]{0,80}\))?(\ is|\ are)?\ too\ (long|large)
    | too\ large\ for\ model\ with | request\ exceeds\ the\ maximum\ size | total\ message\ size\ \S{1,40}\ exceeds
    | (input|prompt|request\w{0,9})\b[^.]{0,30}\ tokens?\b[^.]{0,30}(exceeds?\b|exceeded|but\ model\ only\ supports)
    | exceed\w{0,9}\ (the\ )?(model\ )?token\ limit | token\ limit\ exceeded | too\ many\ (input\ )?tokens
    | number\ of\ tokens\b[^.]{0,40}cannot\ exceed | token\ count\b[^.]{0,30}exceed | context\ window\ (is\ )?full
    | (?<!output\ )(?<!completion\ )(?<!new\ )(?<!maximum\ )(?<!max\ )\btokens\ [^.]{0,40}exceed
    | \btokens?\b[^.]{0,20}more\ than\ (the\ )?max
    | sequence\ length\b[^.]{0,20}exceed | prompt\ length\b[^.>]{0,30}>\ ?max
    | range\ of\ input\ length | n_keep\b.{0,30}n_ctx
    | reduce\ the\ (length\ of\ the\ (messages|prompt|input)|input\ token\ count)
    | `inputs`\ (tokens\ \+|must\ have\ less\ than) | long\ context\ (requests|beta)
    | max_tokens\ must\ be\ at\ least\ 1,\ got\ -
    | 超[过出][^。]{0,20}(上下文|长度) | prompt\ ?超长""",
    re.IGNORECASE | re.VERBOSE,
)
"""Matches the error of any provider for a conversation that is too long. Examples are in
tests/unit/models/overflows.py.
"""
_NUMBER = r"(\d[\d,]{0,20})"
_WINDOW = re.compile(
    rf"""(?:maximum|allowed|loaded\ with|available|configured|exceed)\ (?:allowed\ )?
      (?:context|prompt|model|input)\ (?:length|window|size|limit)
      (?:\ is|\ of)?(?:\ only)?:?\ \(?{_NUMBER}(?![\d,]|\ \+)
    | model's\ context\ length\ \({_NUMBER} | {_NUMBER}\ maximum\ context | n_ctx\ \({_NUMBER}
    | maximum\ number\ of\ tokens\ allowed\ \(?{_NUMBER} | model\ only\ supports\ up\ to\ {_NUMBER}
    | \d\ tokens\ >\ {_NUMBER} | \d\ \+\ \d{{1,20}}\ >\ {_NUMBER} | max\ input\ tokens:\ {_NUMBER} | \[1,\ {_NUMBER}\]
    | token\ limit:\ {_NUMBER} | max\ length:\ ?{_NUMBER} | while\ limit\ is\ {_NUMBER} | limit\ of\ {_NUMBER}
    | token\ count\ \(\d{{1,12}}\)\ exceeds\ limit\ \({_NUMBER} | exceed\ the\ limit\ {_NUMBER} | max_seq_len\ {_NUMBER}
    | must\ be\ <=\ {_NUMBER} | must\ have\ less\ than\ {_NUMBER} | cannot\ exceed\ {_NUMBER}""",
    re.IGNORECASE | re.VERBOSE,
)
"""Matches the token limit in an overflow message."""
_ALLOWANCE = re.compile(
    r"per[ -](second|min|hour|day|week|month)|\b[RT]P[HMD]\b|rate.?limit|throttl|too many requests|please wait|quota"
    r"|daily|monthly|try again (in|later)|in flight|concurren|capacity|overload|\bqueued?\b|server load|\bbusy\b"
    r"|\b(your|this) (plan|organi[sz]ation|account|tier|project|team|workspace|api key)\b",
    re.IGNORECASE,
)
"""Matches rate-limit and overload errors. They may mention tokens, but a shorter request would not help."""
_OVERFLOW_CODES = frozenset({"1261"})
_PER_MINUTE = re.compile(r"tokens per min|\bTPM\b|requests per min|\bRPM\b", re.IGNORECASE)
_QUOTA = re.compile(
    r"insufficient_quota|exceeded your current quota|credit balance|insufficient (credits|balance|funds)|spend.?limit"
    r"|billing_(error|hard_limit)|payment required",
    re.IGNORECASE,
)
_UNPAID = re.compile(
    r"quota|credit|balance|spending|billing|arrear|overdue|in good standing|subscription (has )?(expired|ended)",
    re.IGNORECASE,
)
"""Matches a 403 error about billing. In this case, the key itself is valid."""
_BAD_KEY = re.compile(r"api.?key (not valid|is invalid|expired)|invalid.{0,3}api.?key|api_key_invalid", re.IGNORECASE)
_FILTER = re.compile(
    r"content_filter|content_policy|content management policy|responsible ?ai|flagged|moderation|bio_policy"
    r"|misalignment_policy|prohibited_content|invalid_prompt",
    re.IGNORECASE,
)
_OVERLOADED = re.compile(r"overloaded|\bbusy\b|loading model|model is (currently )?loading|at capacity", re.IGNORECASE)
_SENTENCES: dict[FailureKind, str] = {
    "auth": "rejected the API key. Check api_key under [providers.{provider}] in shoal.toml.",
    "quota": "has no credit or quota left for this key. Top up the account, or configure a fallback model.",
    "rate_limited": "has limited your request rate.",
    "overloaded": "is temporarily unavailable.",
    "server_error": "reported an internal error.",
    "timeout": "took too long to respond.",
    "dropped": "sent no response.",
    "unreachable": "redirects requests to another URL. Check base_url.",
    "context_overflow": "says that the conversation is too long for the model.",
    "content_filter": "rejected the content under its policy.",
}
"""Text that follows the provider's name and the status in a failure message, by kind of failure."""
_WAIT = re.compile(r"(?:try again|retry) in ((?:\d+h)?(?:\d+m(?!s))?(?:\d+(?:\.\d+)?(?:ms|s))?)", re.IGNORECASE)
_SPAN = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(ms|h|m|s)")
_SPAN_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_KEY_LIKE = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|key|hf|nvapi)[-_][\w*.-]{6,}|\bAIza[\w-]{20,}|(?<=[Bb]earer )[\w.~+/*-]{6,}"
)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]+")


def failure_of(
    status: int,
    body: bytes,
    headers: Mapping[str, str],
    provider: str,
    secrets: Iterable[str] = (),
    clock: Clock | None = None,
) -> ModelFailed:
    """Convert an HTTP error response to a failure. `headers` must have lowercase names. `secrets` are redacted."""
    complaint = _read_complaint(body)
    wait = retry_after(headers, clock)
    if wait is None:
        wait = complaint.retry_after_seconds
    return _failure(complaint, status, provider, wait, secrets)


def failure_in_stream(body: bytes, provider: str, secrets: Iterable[str] = ()) -> ModelFailed:
    """Convert an error object in a stream to a failure. The error's code determines the status, which is 500 by
    default.
    """
    complaint = _read_complaint(body)
    known = (int(code) if _STATUS.fullmatch(code) else _STATUS_OF_CODE.get(code, 0) for code in sorted(complaint.codes))
    status = next((code for code in known if code), 500)
    return _failure(complaint, status, provider, complaint.retry_after_seconds, secrets)


def is_complaint(body: bytes) -> bool:
    try:
        return msgspec.json.decode(_first(body), type=_Whole).is_error
    except UNREADABLE:
        return False


def failure_in_document(body: bytes, provider: str, secrets: Iterable[str] = ()) -> ModelFailed:
    if is_complaint(body):
        return failure_in_stream(body, provider, secrets)
    try:
        holds_something = bool(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
    except msgspec.ValidationError:
        holds_something = False
    except UNREADABLE:
        return ModelFailed("dropped", f"{provider} sent only part of a response.")
    if holds_something:
        return ModelFailed("invalid_request", f"{provider} responded without streaming. Check base_url.")
    words = redact(body[:COMPLAINT_CHARS_MAX].decode("utf-8", "replace"), secrets)
    return ModelFailed("dropped", f"{provider} sent a response in an unknown format: {words}")


def _first(body: bytes) -> bytes:
    raw = body.strip()
    if raw[:1] == b"[":
        documents = msgspec.json.decode(raw, type=list[msgspec.Raw])
        return bytes(documents[0]) if documents else b"{}"
    return raw


def _failure(
    complaint: _Complaint, status: int, provider: str, wait_seconds: float | None, secrets: Iterable[str]
) -> ModelFailed:
    kind = _kind(complaint, status)
    sentence = _SENTENCES.get(kind, "rejected the request.")
    if 300 <= status < 400:
        sentence = _SENTENCES["unreachable"]
    if kind == "invalid_request" and status == 404:
        sentence = "does not know the model or URL. Check model.name and base_url, or run `shoal models list`."
    words = redact(complaint.words, secrets)
    quote = f" It said: {words}" if words else ""
    is_passing = kind in RETRYABLE
    message = f"{provider} ({status}) {sentence.format(provider=provider)}{quote}"
    match = _WINDOW.search(complaint.words) if kind == "context_overflow" else None
    window = next((int(number.replace(",", "")[:9]) for number in match.groups() if number), 0) if match else 0
    return ModelFailed(kind, message, wait_seconds if is_passing else None, window)


def redact(words: str, secrets: Iterable[str] = ()) -> str:
    """Remove keys and control characters from a provider's text, and truncate it to WORDS_CHARS_MAX characters."""
    for secret in secrets:
        if not is_ordinary(secret):
            words = words.replace(secret, "[key]")
    words = _KEY_LIKE.sub("[key]", _CONTROLS.sub(" ", words)).strip()
    return words if len(words) <= WORDS_CHARS_MAX else words[: WORDS_CHARS_MAX - 1] + "…"


def _read_complaint(body: bytes) -> _Complaint:
    try:
        raw = _first(body)
        document = msgspec.json.decode(raw, type=_ErrorBody)
    except UNREADABLE:
        error = None
    else:
        whole = b"null" if bytes(document.message) == b"null" else raw
        errors = (_decode_error(part) for part in (bytes(document.error), whole, bytes(document.detail), raw))
        error = next((error_found for error_found in errors if error_found is not None), None)
    if error is None:
        text = body[:COMPLAINT_CHARS_MAX].decode("utf-8", "replace")
        return _Complaint("" if text.lstrip()[:1] == "<" else text, frozenset())
    words = (error.message or "")[:COMPLAINT_CHARS_MAX]
    if error.metadata is not None and error.metadata.raw:
        words = f"{words} ({error.metadata.raw})"[:COMPLAINT_CHARS_MAX]
    details = error.details or []
    values = (error.type, error.code, error.status, *(detail.reason for detail in details))
    codes = frozenset(str(value).lower() for value in values if value)
    waits = [detail.retry_delay for detail in details if detail.retry_delay]
    waits += [waits_found.group(1) for waits_found in _WAIT.finditer(words)][:1]
    spans = _SPAN.findall(waits[0]) if waits else ()
    asked = sum(float(number) * _SPAN_SECONDS[unit] for number, unit in spans) if spans else None
    seconds = min(asked, ASKED_SECONDS_MAX) if asked is not None else None
    return _Complaint(words, codes, seconds, any(b"PerDay" in bytes(detail.violations) for detail in details))


def _decode_error(raw: bytes) -> _ErrorDocument | None:
    if raw == b"null":
        return None
    for kind in (_ErrorDocument, _LooseError, str):
        try:
            decoded = msgspec.json.decode(raw, type=kind)
        except UNREADABLE:
            continue
        if isinstance(decoded, str):
            return _ErrorDocument(decoded)
        if isinstance(decoded, _LooseError):
            return _ErrorDocument(decoded.message, decoded.type)
        return decoded
    return _ErrorDocument(raw[:WORDS_CHARS_MAX].decode("utf-8", "replace"))


def _text_matters(status: int, text: str) -> bool:
    if status == 403:
        return not (_UNPAID.search(text) or _BAD_KEY.search(text))
    return status not in _OTHERWISE_MEANT


def _kind(complaint: _Complaint, status: int) -> FailureKind:
    text = f"{complaint.words} {' '.join(sorted(complaint.codes))}"[:COMPLAINT_CHARS_MAX]
    if _PER_MINUTE.search(text) and status in (403, 413, 429):
        return "rate_limited"
    if status == 413 or complaint.codes & _OVERFLOW_CODES:
        return "context_overflow"
    if _OVERFLOW.search(text) and not _ALLOWANCE.search(complaint.words):
        return "context_overflow"
    if _text_matters(status, text) and not _OVERLOADED.search(text) and teaches(text):
        return "invalid_request"
    if _QUOTA.search(text) and status < 500:
        waits = complaint.retry_after_seconds is not None and not complaint.daily
        return "rate_limited" if status == 429 and waits else "quota"
    if status == 403 and _UNPAID.search(text):
        return "quota"
    if _BAD_KEY.search(text):
        return "auth"
    if _OVERLOADED.search(text) and status >= 429:
        return "overloaded"
    if status < 500 and status not in (401, 429) and _FILTER.search(text):
        return "content_filter"
    if 200 <= status < 300:
        return "dropped"
    return _KIND_OF_STATUS.get(status, "server_error" if status >= 500 else "invalid_request")
