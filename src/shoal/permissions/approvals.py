"""Questions to people: what they are bound to, how they are shown, who may answer, and answers given as text.

Pure functions; the rows live in the store. An approval is bound to a digest of everything that determines what the call
does. It is used once: the executor compares the digest of the call that is about to run with the one that was approved.
"""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from shoal.domain.messages import verdict_of
from shoal.domain.permissions import Asker
from shoal.domain.records import Approval

ANSWER_CHARS_MAX = 200

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[ -/]*[0-OQ-WYZ`-~])")
_UNSEEN = re.compile("[\u2800\u3164\uffa0\u115f\u1160\u00ad\u034f\u17b4\u17b5\u180e\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})

_YES = (
    "yes,? please|go ahead|allow|yes|approve|ok|okay|y|erlauben|ja|autoriser|oui|permitir|sí|si|consenti|sì|sim|"
    "разрешить|да|允许|許可|はい"
)
_NO = (
    "no,? thanks|deny|no|reject|n|ablehnen|nein|refuser|non|denegar|rechazar|nega|negar|não|nao|запретить|нет|"
    "拒绝|拒否|いいえ"
)
_ALWAYS = "always|thread|immer|toujours|siempre|sempre|всегда|总是|常に"
_ANSWER = re.compile(
    rf"[/!]?(?:(?P<yes>{_YES})|(?P<no>{_NO}))(?:\s+(?P<first>{_ALWAYS}))?"
    rf"(?:\s+[#`(]*(?P<id>[A-Za-z0-9_-]{{4,64}})[`)]*)?(?:\s+(?P<last>{_ALWAYS}))?[.,!。！]*",
    re.IGNORECASE,
)


class Answer(msgspec.Struct, frozen=True):
    """A decision that somebody wrote: what it says, and the approval's id as written, empty where none was."""

    approval: str
    allow: bool
    scope: Literal["once", "thread"] = "once"


def approval_digest(tool: str, canonical: str, *extra: str) -> str:
    """The digest an approval is bound to: SHA-256, hex, of the tool's name, the call's canonical JSON, and `extra`
    (the agent, and whatever else determines the effect). Any difference in any of them changes it."""
    return hashlib.sha256(msgspec.json.encode(["shoal-approval-1", tool, canonical, *extra])).hexdigest()


def strip_controls(text: str) -> str:
    """The text as a person can trust to see it. Escape sequences that style it or move the cursor go; characters that
    are invisible or change the direction of writing become `\\u{…}`. New lines, tabs and all other text stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in "\n\t " or not (_UNSEEN.match(char) or unicodedata.category(char) in _HIDDEN)
        else f"\\u{{{ord(char):x}}}"
        for char in _ESCAPES.sub("", text)
    )  # fmt: skip


def may_decide(approval: Approval, by: Asker, approvers: Sequence[str] = (), *, allow: bool = True) -> bool:
    """Whether somebody may decide: who asked for the call, or one of the approvers (owners are among them). Who asked
    and is not trusted can only deny what untrusted content raised: it may be their own words.

    People are `PLATFORM:USER`, and a person whose identities are linked is each of them. An
    approver is `PLATFORM:USER`, `role:NAME`, or `PLATFORM:role:NAME`. Nobody without a user id may.
    """
    if not by.user or not by.platform:
        return False
    names = set(by.identities)
    asked_by = approval.asked_by
    if ":" not in asked_by:
        asked_by = f"{approval.asked_in.split(':', 1)[0]}:{asked_by}"
    if asked_by in names and not (allow and approval.needs_trust and by.trust == "untrusted"):
        return True
    for role in by.roles:
        names |= {f"role:{role}", f"{by.platform}:role:{role}"}
    return any(approver in names for approver in approvers)


def parse_answer(text: str) -> Answer | None:
    """A decision written as a message: `allow`, `no`, 👍, `deny ID`, `allow ID always`, in a few languages; else None.

    The whole message has to be that, so that a sentence that mentions it decides nothing.
    """
    if len(text) > ANSWER_CHARS_MAX:
        return None
    verdict = None if text.isascii() else verdict_of(text.strip())
    if verdict is not None:
        return Answer("", verdict)
    found = _ANSWER.fullmatch(text.strip())
    if found is None:
        return None
    allow = found["yes"] is not None
    always = bool(found["first"] or found["last"])
    return Answer(found["id"] or "", allow, "thread" if allow and always else "once")


def expires_at(now: datetime, ask_expires_seconds: float) -> datetime:
    """When a question asked now is no longer open."""
    return now + timedelta(seconds=ask_expires_seconds)
