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

from shoal.domain.foreign import untrusted_block

CHANGES_CHARS_MAX = 4000
"""A longer account of changes is not told: the system text is renewed instead."""


class Section(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the system text, heading included; an empty text leaves it out.

    `live` sections may change under a base. `label` says in a change notice what changed; without one it goes untold.
    `tainted_by` names the files in it that untrusted content had a hand in.
    """

    name: str
    text: str
    live: bool = False
    label: str = ""
    tainted_by: tuple[str, ...] = ()


def file_section(name: str, head: str, text: str, source: str, *, live: bool = False, label: str = "") -> Section:
    """A file's text below its heading; that of a marked one (`source` says by what) stands in an untrusted block."""
    if not text:
        return Section(name, "", live=live, label=label)
    tainted_by = f"{name}, written after {source}"
    if not source:
        return Section(name, f"{head}{text}", live=live, label=label)
    return Section(name, f"{head}{untrusted_block(tainted_by, text)}", live, label, (tainted_by,))


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

    @property
    def tainted_by(self) -> str:
        """The marked files in what the model is told, at most three by name; empty when there are none."""
        sections = (*self.system.sections, *self.told.sections)
        names = list(dict.fromkeys(name for section in sections for name in section.tainted_by))
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


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
        was = old.get(section.name, _NEW)
        if section.live and section.label and section.text != was.text:
            lines = "\n".join(_lines(section.label, was.text, section.text))
            tainted_by = ", ".join(dict.fromkeys((*was.tainted_by, *section.tainted_by)))
            parts.append(untrusted_block(tainted_by, lines) if lines and tainted_by else lines)
    return "\n".join(part for part in parts if part)


def _lines(label: str, before: str, after: str) -> Iterable[str]:
    old, new = _counted(before), _counted(after)
    for what, lines in (("now also says", new - old), ("no longer says", old - new)):
        if lines:
            yield f"{label} {what}:"
            yield from lines.elements()


def _counted(text: str) -> Counter[str]:
    """The lines below the heading, without the marks around untrusted text; empty ones say nothing."""
    return Counter(line for line in text.splitlines() if line.strip() and not line.startswith(_NO_TEXT))


def _frozen(prompt: SystemPrompt) -> list[Section]:
    return [section for section in prompt.sections if not section.live]


_NEW = Section("", "")
_NO_TEXT = ("#", "<untrusted", "</untrusted")
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[Section, ...])
