"""Decides from a value alone whether it can be a secret. Redacting ordinary words would change the text that agents
read.

    value                                          `is_ordinary`   `is_plain`   `looks_like_key`
    --------------------------------------------   -------------   ----------   ----------------
    production, true, 8080, not-needed, sk-xxxx    yes             yes          no
    github.com, /var/lib, application/json         yes             yes          no
    us-east-1, gpt-4o-mini, release-2026-06        no              yes          no
    hunter22, correct-horse-battery, a URL         no              yes          no
    Tr0ub4dor, s3cr3t-pw                           no              no           no
    9f86d081884c7d659a2feaa0c55ad015, AKIAEVTD…    no              no           yes
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from urllib.parse import parse_qsl, unquote, urlsplit

from shoal.kernel import lazy_re

PLACEHOLDER = lazy_re.compile(r"\[redacted:[a-z-]{3,20}\]")
"""Matches the text that replaces a secret."""
CHARS_MIN = 6
"""Minimum length of a secret. Shorter values would match inside ordinary words."""
KEY_CHARS_MIN = 16
_KEY_PREFIXES = ("glpat-", "gldt-", "glrt-", "AIza", "sk_live_", "sk_test_")
"""Prefixes of keys whose random part has so few letters that it can look like a word."""
_URL_CHARS_MAX = 4096
_NUMBER_DIGITS_MAX = 9

_PLACEHOLDERS = frozenset(
    """
    a an and any api apikey auth bearer change changeme default demo dummy empty enter example fake false foo bar baz
    foobar fill fixme given goes hello here id in insert key keyless keys lm local localhost me mock my na needed nil no
    none not null ollama on off only or pass passwd password paste placeholder please provided put real redacted replace
    replaceme required sample secret set sk some string studio test testing tests the this to todo token tokens true
    unknown unset unused use used user username value vllm with x your yes
    """.split()  # noqa: SIM905
)
_WORD = lazy_re.compile(r"[A-Za-z]+")
_CASED = lazy_re.compile(r"[A-Z]*[a-z]{2,}|[A-Z]{2,}|[A-Za-z]")
_PLAIN = lazy_re.compile(r"[A-Za-z]{1,20}[0-9]{0,4}|[0-9]{1,9}|[0-9]{1,5}[A-Za-z]{1,4}")
_HOST = lazy_re.compile(r"(?:[A-Za-z0-9_-]{1,63}\.){1,8}[A-Za-z]{2,24}\.?(?::[0-9]{1,5})?|[A-Za-z-]{1,63}:[0-9]{1,5}")
_ADDRESS = lazy_re.compile(
    r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?:[:/][0-9]{1,5})?|\[?(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}\]?(?:[:/][0-9]{1,5})?"
)
_MAIL = lazy_re.compile(r"[A-Za-z0-9._+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}")
_MEDIA_TYPE = lazy_re.compile(
    r"(?:application|audio|font|image|message|model|multipart|text|video|\*)/[\w.+*-]{1,80}(?:[;,].{0,300})?"
)
_AWS_ID = lazy_re.compile(r"A[KS]IA[A-Z2-7]{16}")
"""Matches an AWS key id, which may consist only of letters and look like a word."""
_UUID = lazy_re.compile(r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}")
_DRIVE = lazy_re.compile(r"[A-Za-z]:[\\/]")
_SPLIT = lazy_re.compile(r"[^A-Za-z0-9]+")
_SCHEME = lazy_re.compile(r"[A-Za-z][A-Za-z0-9_-]{2,20}[ \t]{1,4}(\S{6,})")


def is_ordinary(value: str) -> bool:
    """Return True if a value is never a secret under any key: a word, number, host, path or placeholder."""
    value = value.strip()
    if len(value) < CHARS_MIN or len(set(value)) < 3:
        return True
    parts = [part for part in _SPLIT.split(value) if part]
    if not parts:
        return value.isascii()
    if "\n" in value:
        return False
    if all(_is_placeholder(part) for part in parts) or _is_filled_in(value):
        return True
    if _has_key_prefix(value):
        return False
    if value == parts[0] and value.isascii():
        return _is_word(value) or (value.isdecimal() and len(value) <= _NUMBER_DIGITS_MAX)
    return _is_location(value, parts) or _is_number(value)


def is_plain(value: str) -> bool:
    if is_ordinary(value):
        return True
    return not _has_key_prefix(value.strip()) and all(
        _PLAIN.fullmatch(part) and not _is_aws_id(part) and (not part.isalpha() or _is_word(part))
        for part in _SPLIT.split(value.strip())
        if part
    )


def looks_like_key(value: str) -> bool:
    value = value.strip()
    if len(value) < KEY_CHARS_MIN or len(value.split()) != 1 or not value.isascii() or _UUID.fullmatch(value):
        return False
    return not is_plain(value) and (_has_key_prefix(value) or any(_is_random(part) for part in _SPLIT.split(value)))


def secret_parts(value: str) -> Iterator[str]:
    """Yield the strings to redact for a secret.

    These are the value itself, the part after `Bearer`, the password and keys in a URL, and the keys in multiline text.
    Ordinary strings are skipped.
    """
    value = value.strip()
    if "://" in value[:40] and "\n" not in value:
        yield from _parts_of_url(value)
        return
    if not is_ordinary(value):
        yield value
    if (scheme := _SCHEME.fullmatch(value)) is not None and not is_ordinary(scheme[1]):
        yield scheme[1]
    if "\n" in value or (len(value) > KEY_CHARS_MIN and any(mark in value for mark in '=;,"')):
        pieces = re.split(r"[\s\"',;]+|=(?!=|$)|(?<==)(?=[^=])", value)[:400]
        yield from (piece for piece in pieces if piece != value and looks_like_key(piece))


def _parts_of_url(value: str) -> Iterator[str]:
    try:
        url = urlsplit(value[:_URL_CHARS_MAX])
        password, query = url.password, parse_qsl(url.query, max_num_fields=100)
    except ValueError:
        return
    if password and not is_ordinary(unquote(password)):
        yield value
        yield from {password, unquote(password)}
    yield from filter(looks_like_key, url.path.split("/"))
    yield from filter(looks_like_key, (value for _, value in query))
    if url.username and looks_like_key(url.username):
        yield url.username


def _has_key_prefix(value: str) -> bool:
    return len(value) >= KEY_CHARS_MIN and value.startswith(_KEY_PREFIXES)


def _is_word(text: str) -> bool:
    """Return True if the text is capitalized like a word or a name, including `camelCase`.

    Random letters change case more often.
    """
    if not _WORD.fullmatch(text) or len(text) > 40 or _is_aws_id(text):
        return False
    return len(_CASED.findall(text)) <= max(1, len(text) // 5 + 1)


def _is_aws_id(text: str) -> bool:
    return _AWS_ID.fullmatch(text) is not None and len(set(text)) >= 6


def _is_placeholder(part: str) -> bool:
    word = part.lower().rstrip("0123456789")
    return word in _PLACEHOLDERS or (word.strip("x") == "" and (len(part) <= 6 or bool(word)))


def _is_filled_in(value: str) -> bool:
    return (value[0], value[-1]) in {("<", ">"), ("{", "}"), ("[", "]"), ("%", "%")} or value.startswith(("$", "{{"))


def _is_number(value: str) -> bool:
    return bool(re.fullmatch(r"v?[0-9]{1,9}(?:[.,_:/-][0-9A-Za-z]{1,8}){0,6}", value)) or bool(
        ":" in value and _ADDRESS.fullmatch(value)
    )


def _is_location(value: str, parts: list[str]) -> bool:
    if any(_is_random(part) for part in parts) or not value.isascii() or len(value.split()) != 1 or '"' in value:
        return _MEDIA_TYPE.fullmatch(value) is not None
    if _HOST.fullmatch(value) or _ADDRESS.fullmatch(value) or _MAIL.fullmatch(value):
        return True
    is_path = "/" in value or "\\" in value or value.startswith((".", "~")) or _DRIVE.match(value) is not None
    is_named = all(_PLAIN.fullmatch(part) for part in parts) and all(value[:1].isalpha() for value in value.split("/"))
    return is_path and (is_named or value.startswith(("/", "./", "../", "~")) or _DRIVE.match(value) is not None)


def _is_random(part: str) -> bool:
    if len(part) < 12 or len(set(part)) < 6:
        return False
    if _is_aws_id(part):
        return True
    kinds = ["0" if char.isdigit() else "a" if char.islower() else "A" for char in part]
    digits = sum((kind == "0") != (two == "0") for kind, two in pairwise(kinds))
    cases = sum(kind != two for kind, two in pairwise(kinds))
    return digits >= max(3, len(part) // 10) or cases > len(part) // 3
