"""The stable part of a prompt as sections, and how a change in it reaches the model without breaking the prefix.

A thread's requests begin with the same bytes for as long as its window stands, so that providers' caches hit. The
system text sent is therefore that of the window's first turn (the *base*). Live sections (memory, notes, skills) that
change later are told in the volatile block of the next turn instead. Any other change, a cleared or compacted window,
or a change too long to tell makes the present prompt the new base.

state of a thread            before the turn           after it
-------------------------    ----------------------    ------------------------------------------------
no base (new window)         -                         base = told = now, nothing is told
a frozen section differs     base, told                base = told = now, nothing is told
live sections differ         base, told                base stays, told = now, the difference is told
nothing differs              base, told                base stays, told = now, nothing is told
"""

import hashlib
from collections import Counter
from collections.abc import Iterable

import msgspec

CHANGES_CHARS_MAX = 4000
"""A longer account of changes is not told: the system text is renewed instead."""


class Section(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the system text, heading included; an empty text leaves it out.

    `live` sections may change under a base. `label` says in a change notice what changed; without one it goes untold.
    """

    name: str
    text: str
    live: bool = False
    label: str = ""


class SystemPrompt(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A system text, its sections, and the digest by which a store keeps it. Compare by identity or by digest."""

    text: str
    digest: str
    sections: tuple[Section, ...]


class Settled(msgspec.Struct, frozen=True, eq=False):
    """What a turn sends: the system text, and what is told of changes since. The next turn needs both prompts."""

    system: SystemPrompt
    told: SystemPrompt
    changes: str = ""


def assemble(sections: Iterable[Section]) -> SystemPrompt:
    """Join sections into a prompt."""
    kept = tuple(sections)
    digest = hashlib.blake2b(_encoder.encode(kept), digest_size=16).hexdigest()
    return SystemPrompt("\n\n".join(section.text for section in kept if section.text), digest, kept)


def encode_prompt(prompt: SystemPrompt) -> bytes:
    """The prompt as JSON, to be stored under its digest."""
    return _encoder.encode(prompt.sections)


def decode_prompt(data: bytes) -> SystemPrompt:
    """Invert `encode_prompt`. Raises msgspec.DecodeError on damaged data."""
    return assemble(_decoder.decode(data))


def settle(base: SystemPrompt | None, told: SystemPrompt | None, now: SystemPrompt) -> Settled:
    """Choose the system text of a turn: see the table above. `told` is what the model knows; None means the base."""
    if base is None or (base is not now and _frozen(base) != _frozen(now)):
        return Settled(now, now)
    known = told or base
    if known is now or known.digest == now.digest:
        return Settled(base, now)
    changes = difference(known, now)
    if len(changes) > CHANGES_CHARS_MAX:
        return Settled(now, now)
    return Settled(base, now, changes)


def difference(before: SystemPrompt, after: SystemPrompt) -> str:
    """The lines that live sections of `after` gained and lost since `before`, by label; empty when there are none.

    A section that `after` lacks altogether has passed (an old daily note) and is not told.
    """
    old = {section.name: section for section in before.sections if section.live}
    parts: list[str] = []
    for section in after.sections:
        was = old[section.name].text if section.name in old else ""
        if section.live and section.label and section.text != was:
            parts.extend(_lines(section.label, was, section.text))
    return "\n".join(parts)


def _lines(label: str, before: str, after: str) -> Iterable[str]:
    old, new = _counted(before), _counted(after)
    for what, lines in (("now also says", new - old), ("no longer says", old - new)):
        if lines:
            yield f"{label} {what}:"
            yield from lines.elements()


def _counted(text: str) -> Counter[str]:
    """The lines below the heading; empty ones say nothing."""
    return Counter(line for line in text.splitlines() if line.strip() and not line.startswith("#"))


def _frozen(prompt: SystemPrompt) -> list[Section]:
    return [section for section in prompt.sections if not section.live]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[Section, ...])
