"""Remove secrets from text: known values, and text that looks like a key, a token or a password.

Each shape of secret has markers, and every match contains one of them. Most texts contain neither a marker nor a known
value. Such texts cost a few substring searches and are returned unchanged.
"""

import base64
import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from types import TracebackType
from urllib.parse import quote

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.records import AuditEntry
from shoal.text.secret_forms import CHARS_MIN, is_ordinary, is_plain, looks_like_key, secret_parts

KNOWN_MAX = 2000


class Shape(msgspec.Struct, frozen=True):
    """A kind of secret. All repeats in the patterns are bounded.

    markers: short texts, one of which every match contains.
    pattern: matches the secret. The text of its group `keep` remains.
    glimpse: searched first if no marker is rare enough. It begins with a literal, which `re` finds quickly.
    spares: returns True for a match that is not replaced, for example because it is an ordinary word.

    `re` compiles and caches both patterns on first use.
    """

    kind: str
    markers: tuple[str, ...]
    pattern: str
    glimpse: str = ""
    spares: Callable[[str], bool] | None = None

    def replaced(self, match: re.Match[str]) -> str:
        keep = match["keep"] if "keep" in match.re.groupindex else ""
        if self.spares is not None and self.spares(match[0][len(keep) :]):
            return match[0]
        return f"{keep}[redacted:{self.kind}]"


def _shape(
    kind: str, markers: str, pattern: str, glimpse: str = "", spares: Callable[[str], bool] | None = None
) -> Shape:
    return Shape(kind, tuple(markers.split()), pattern, glimpse, spares)


def _is_example(text: str) -> bool:
    return is_ordinary(text) or "example" in text.lower() or "xxxx" in text.lower() or "your" in text.lower()


def _is_not_basic(text: str) -> bool:
    """Return True if a word after `basic` is not the base64 of USER:PASSWORD."""
    try:
        return b":" not in base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return True


def _is_prose(text: str) -> bool:
    return not looks_like_key(text) and (is_ordinary(text) or text.isalpha() or text.islower() or "example" in text)


_SHAPES = (
    _shape(
        "private-key",
        "-----BEGIN",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:[^-]|-(?!----)){0,20000}(?:-----END [A-Z0-9 ]{0,40}-----)?",
    ),
    _shape(
        "api-key",
        "sk- sk_ rk_ pk_",
        r"\b(?:sk-[A-Za-z0-9_-]{16,300}|[srp]k_(?:live|test)_[A-Za-z0-9]{10,300})",
        spares=lambda text: _is_example(text) or is_plain(text),
    ),
    _shape("github-token", "gh github_pat_", r"\b(?:gh[pousr]_[A-Za-z0-9]{20,300}|github_pat_[A-Za-z0-9_]{20,300})"),
    _shape("gitlab-token", "glpat- gldt- glrt-", r"\bgl(?:pat|dt|rt)-[A-Za-z0-9_-]{16,300}"),
    _shape("slack-token", "xox xapp-", r"\b(?:xox[a-z]-|xoxe\.xox[bp]-|xapp-)[A-Za-z0-9-]{10,300}"),
    _shape("slack-webhook", "hooks.slack.com", r"(?P<keep>hooks\.slack\.com/services/)[A-Za-z0-9/]{10,200}"),
    _shape("aws-key", "AKIA ASIA", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", spares=_is_example),
    _shape("google-key", "AIza ya29.", r"\b(?:AIza[A-Za-z0-9_-]{30,100}|ya29\.[A-Za-z0-9_-]{20,500})"),
    _shape("jwt", "eyJ", r"\beyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,8000}\.[A-Za-z0-9_-]{0,2000}"),
    _shape("telegram-token", ":AA", r"\b(?:bot)?[0-9]{6,12}:AA[A-Za-z0-9_-]{30,40}"),
    _shape(
        "discord-token",
        ".",
        r"\b[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,45}",
        r"\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27}",
    ),
    _shape("matrix-token", "syt_ mct_", r"\b(?:syt|mct)_[A-Za-z0-9_]{20,300}"),
    _shape("package-token", "npm_ pypi-", r"\b(?:npm_[A-Za-z0-9]{30,100}|pypi-[A-Za-z0-9_-]{50,300})"),
    _shape(
        "model-key", "hf_ gsk_ xai-", r"\b(?:hf_[A-Za-z0-9]{30,100}|gsk_[A-Za-z0-9]{30,100}|xai-[A-Za-z0-9]{30,200})"
    ),
    _shape("shoal-token", "shoal_", r"\bshoal_[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
    _shape("mail-key", "SG.", r"\bSG\.[A-Za-z0-9_-]{16,40}\.[A-Za-z0-9_-]{30,60}"),
    _shape("bearer", "earer EARER", r"(?P<keep>\b(?i:bearer)[ \t]{1,8})[A-Za-z0-9._~+/=-]{12,4000}", spares=_is_prose),
    _shape(
        "basic-auth", "asic ASIC", r"(?P<keep>\b(?i:basic)[ \t]{1,8})[A-Za-z0-9+/]{12,400}={0,2}", spares=_is_not_basic
    ),
    _shape(
        "password",
        "://",
        r"(?P<keep>[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s/:@'\"]{0,100}:)[^\s/@'\"]{1,300}(?=@)",
        spares=_is_example,
    ),
    _shape(
        "token",
        "oken= _key= ecret= ignature=",
        r"(?P<keep>[?&](?:access_|refresh_|id_)?(?:token|api_key|secret|client_secret|signature)=)[^&\s\"'<>#]{8,4000}",
        spares=_is_example,
    ),
)


_UNMISTAKABLE = frozenset(
    """
    private-key api-key github-token gitlab-token slack-token aws-key google-key telegram-token discord-token
    matrix-token package-token model-key shoal-token mail-key
    """.split()  # noqa: SIM905
)


def has_key(text: str) -> bool:
    """Return True if a text contains something that can only be a key. Runs in time linear in the length of the
    text.
    """
    for shape in _SHAPES:
        likely = shape.kind in _UNMISTAKABLE and any(marker in text for marker in shape.markers)
        likely = likely and (not shape.glimpse or re.search(shape.glimpse, text) is not None)
        if likely and re.sub(shape.pattern, shape.replaced, text) != text:
            return True
    return False


def _spellings(secret: str) -> set[str]:
    """Return the forms in which a secret may appear: plain, in URLs, in JSON, and in base64 at any offset."""
    raw = secret.encode(errors="surrogateescape")
    spellings = {secret, quote(secret, safe="", errors="replace"), json.dumps(secret)[1:-1]}
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + raw).decode().rstrip("=")
        inner = encoded[(0, 2, 3)[before] : None if (len(raw) + before) % 3 == 0 else -1]
        spelled = encoded if before == 0 else inner
        spellings |= {spelled, spelled.translate(_URL_SAFE), inner, inner.translate(_URL_SAFE)}
    return {spelling for spelling in spellings if len(spelling) >= CHARS_MIN}


_URL_SAFE = str.maketrans("+/", "-_")
_OPEN_KEY = lazy_re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-(?!----)){0,20000}\Z")
_GLIMPSE_CHARS = 4
"""Minimum number of leading characters of a known secret that are withheld at the end of a text. Fewer characters look
like ordinary text.
"""


class Redactor:
    """Replaces secrets with `[redacted:KIND]`, in time linear in the text's length."""

    def __init__(self, known_secrets: Iterable[str] = ()) -> None:
        self._learned: set[str] = set()
        self._known: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._learning = threading.Lock()
        self.learn(*known_secrets)

    def learn(self, *secrets: str) -> None:
        """Add values to remove, also in their URL, JSON and base64 forms. The password in a URL is removed on its own
        too.

        Ordinary words, paths and placeholders are ignored (`is_ordinary`), because they occur in other text. At most
        `KNOWN_MAX` forms are stored. Thread-safe, and cheap for values that are already known.
        """
        with self._learning:
            new = set(secrets) - self._learned
            if not new:
                return
            self._learned = self._learned | new if len(self._learned) < KNOWN_MAX else new
            parts = {part for secret in new for part in secret_parts(secret)}
            spellings = set(self._known).union(*map(_spellings, parts))
            known = sorted(spellings, key=lambda value: (-len(value), value))[:KNOWN_MAX]
            self._known, self._pattern = (
                frozenset(known),
                re.compile("|".join(map(re.escape, known))) if known else None,
            )

    def redact(self, text: str) -> str:
        """Return the text without secrets. Returns the same object if it contains none."""
        if self._pattern is not None and any(value in text for value in self._known):
            text = self._pattern.sub("[redacted:secret]", text)
        for shape in _SHAPES:
            seen = any(marker in text for marker in shape.markers)
            if seen and (not shape.glimpse or re.search(shape.glimpse, text)):
                redacted = re.sub(shape.pattern, shape.replaced, text)
                text = text if redacted == text else redacted
        return text

    def redact_partial(self, text: str) -> tuple[str, str, str]:
        """Redact an incomplete text. Returns three parts:

        1. The beginning of the text, redacted. It is final.
        2. More redacted text that can be shown for now. It does not contain the beginning of a possible secret.
        3. The original text after the first part.
        """
        cut = self._unfinished(text)
        if "-----BEGIN" in text and (key := _OPEN_KEY.search(text)) is not None:
            cut = min(cut, key.start())
        cut = max(text.rfind("\n", 0, cut), text.rfind("\r", 0, cut)) + 1
        final, rest, whole = self.redact(text[:cut]), self.redact(text[cut:]), self.redact(text)
        # the cut would split a secret that contains newlines
        while cut and whole is not text and final + rest != whole:
            cut = max(text.rfind("\n", 0, cut - 1), text.rfind("\r", 0, cut - 1)) + 1
            final, rest = self.redact(text[:cut]), self.redact(text[cut:])
        return final, rest[: self._unfinished(rest)], text[cut:]

    def _unfinished(self, text: str) -> int:
        """Return the start of the last word or of a partial known secret, whichever comes first. Returns the
        length of the text if it ends with neither.
        """
        end = len(text)
        words = [] if text[-1:].isspace() else text.rsplit(None, 1)
        if words and any(char.isalnum() for char in words[-1]):
            end -= len(words[-1])
        for value in self._known:
            begin = max(0, len(text) - len(value) + 1)
            while (begin := text.find(value[:_GLIMPSE_CHARS], begin)) >= 0:
                if value.startswith(text[begin:]):
                    end = min(end, begin)
                    break
                begin += 1
        return end

    def entry(self, entry: AuditEntry) -> AuditEntry:
        """Return the audit entry without secrets. Must be called before the entry is hashed."""
        action, detail = self.redact(entry.action), self.redact(entry.detail)
        if action is entry.action and detail is entry.detail:
            return entry
        return msgspec.structs.replace(entry, action=action, detail=detail)


class RedactingFormatter(logging.Formatter):
    """Removes secrets from the output of another formatter: message, fields and traceback."""

    def __init__(self, inner: logging.Formatter, redactor: Redactor) -> None:
        super().__init__()
        self.inner = inner
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        try:
            text = self.inner.format(record)
        except (TypeError, ValueError, KeyError):
            text = f"{record.msg} {record.args}"
        return self._redactor.redact(text)


def guard_logging(redactor: Redactor, logger: logging.Logger | None = None) -> None:
    """Remove secrets in all handlers of the logger, by default of the root logger.

    Python's last-resort handler, which writes to stderr, is included. A later call replaces an earlier redactor.
    """
    target = logger or logging.getLogger()
    handlers = [*target.handlers, *([logging.lastResort] if logging.lastResort else [])]
    for handler in handlers:
        inner = handler.formatter or logging.Formatter()
        if isinstance(inner, RedactingFormatter):
            inner = inner.inner
        handler.setFormatter(RedactingFormatter(inner, redactor))


def print_crash(
    redactor: Redactor, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    sys.stderr.write(redactor.redact("".join(traceback.format_exception(kind, error, trace))))
