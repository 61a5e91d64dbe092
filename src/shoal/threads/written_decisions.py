"""Parse decisions about approvals in chat messages."""

import re
from typing import Literal

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.messages import means_always, verdict_of

ANSWER_CHARS_MAX = 200

_YES = (
    "yes,? please|go ahead|allow|yes|approve|ok|okay|y|erlauben|ja|autoriser|oui|permitir|sí|si|consenti|sì|sim|"
    "разрешить|да|允许|許可|はい"
)
_NO = (
    "no,? thanks|deny|no|reject|n|ablehnen|nein|refuser|non|denegar|rechazar|nega|negar|não|nao|запретить|нет|"
    "拒绝|拒否|いいえ"
)
_ALWAYS = "always|immer|toujours|siempre|sempre|всегда|总是|常に"
_LONGER = f"{_ALWAYS}|thread"
_ALL = "all|alle|alles|tout|tous|todo|todos|tutto|tutti|tudo|все|всё|全部|すべて"
_AND = "and|und|et|y|e|и|和|と"
_ANSWER = lazy_re.compile(
    rf"[/!]?(?:(?P<yes>{_YES}|{_ALWAYS}|(?P<do>do))|(?P<no>{_NO}|(?P<discard>discard)))(?:\s+(?P<first>{_LONGER}))?"
    rf"(?:\s+(?P<all>{_ALL}))?(?:\s+[#`(]*(?P<id>[A-Za-z0-9_-]{{4,64}})[`)]*)?(?P<numbers>(?:(?:\s+|\s*,\s*|\s+(?:{_AND})\s+)"
    rf"[1-9][0-9]?){{1,32}})?(?:\s+(?P<last>{_LONGER}))?[.,!。！]*",
    re.IGNORECASE,
)

_IS_ALWAYS = lazy_re.compile(_ALWAYS, re.IGNORECASE)
_TAKE_BACK = lazy_re.compile(r"[/!]?take\s+back\s+[#`(]*([A-Za-z0-9_-]{4,64})[`)]*[.!]*", re.IGNORECASE)
_NUMBER = lazy_re.compile(r"[0-9]+")


class WrittenDecision(msgspec.Struct, frozen=True):
    """A decision in a chat message.

    - `approval`: the written id, or an empty string.
    - `numbers`: the numbers of a card's calls.
    - `of_set`: True for the words used with staged calls (`do`, `discard`).
    """

    approval: str
    allow: bool
    scope: Literal["once", "thread", "always"] = "once"
    numbers: tuple[int, ...] = ()
    of_set: bool = False


def parse_answer(text: str) -> WrittenDecision | None:
    """Parse a message that decides an approval, or return None.

    Accepts `allow`, `no`, 👍, ♾, `deny ID`, `allow ID thread`, `always ID` and `allow 1 3` in several languages. For
    staged calls, accepts `do all`, `do ID 1 3` and `discard`. The complete message must match, so a sentence that
    merely mentions a decision has no effect.
    """
    if len(text) > ANSWER_CHARS_MAX:
        return None
    verdict = None if text.isascii() else verdict_of(text.strip())
    if verdict is not None:
        return WrittenDecision("", verdict)
    if means_always(text.strip()):
        return WrittenDecision("", True, "always")
    match = _ANSWER.fullmatch(text.strip())
    if match is None:
        return None
    allow = match["yes"] is not None
    words = [word.lower() for word in (match["yes"], match["first"], match["last"]) if word]
    scope = "thread" if "thread" in words else "always" if any(map(_IS_ALWAYS.fullmatch, words)) else "once"
    numbers = tuple(dict.fromkeys(int(digits) for digits in _NUMBER.findall(match["numbers"] or "")))
    of_set = bool(match["do"] or match["discard"])
    return WrittenDecision(match["id"] or "", allow, scope if allow else "once", numbers, of_set)


def parse_take_back(text: str) -> str:
    """Return the id in `take back ID`, which removes a card's rule. Returns an empty string for any other message."""
    match = _TAKE_BACK.fullmatch(text.strip()) if len(text) <= ANSWER_CHARS_MAX else None
    return match[1] if match is not None else ""
