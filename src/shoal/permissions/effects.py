"""The effect of a call, and the decision that one table derives from it.

    traits ─┐
            ├─► effect_of ─► (effect, trusted, tainted, isolated) ─► ANSWERS ─► allow, ask or guard
    action ─┘   for shell commands, the action contains the result of the shell parser

    effect      meaning                                                      examples
    ---------   ----------------------------------------------------------   -----------------------------------------
    read        changes nothing, and shows only what the agent may see       `git status`, reading a workspace file
                anyway
    contained   changes only what a checkpoint restores, and sends nothing   `pytest` in a sealed sandbox, a file write
    outward     sends something out of the machine or the conversation       `git push` with network access, a message
                                                                             elsewhere
    lasting     changes what no checkpoint restores                          the agent's settings, `.git/hooks`, a
                                                                             file that is too large
    unknown     cannot be determined                                         a command without a sandbox, a tool that
                                                                             declares no effect

A sandbox is sealed if it isolates commands and gives them no network access. If a checkpoint also covers the workspace,
any command in it is contained, because it can change only the workspace and /scratch, and cannot connect to anything.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.permissions import Action
from shoal.kernel.traits import READABLE, WRITABLE, Effect, TraitsByName
from shoal.permissions.code_files import is_executed
from shoal.permissions.fetching import fetched_by

EffectAnswer: TypeAlias = Literal["allow", "guard", "ask"]
"""`allow`: runs the call.
`ask`: asks a person.
`guard`: runs the call unless the guard against untrusted content detects harm (`taint.sink_of`).
"""

_READABLE = lazy_re.compile(READABLE)
_WRITABLE = lazy_re.compile(WRITABLE)
_GIT_FOLDER = lazy_re.compile(r"(?:^|[/\s'\"=:])\.git(?:$|[/\s'\"])")
_WORDS = lazy_re.compile(r"[^\s'\"=;|&<>()]+")
_MAILS = lazy_re.compile(r"(?:\A|/)(?:mail|mailx|mutt|sendmail|msmtp|swaks)\b")
_PUSHES = lazy_re.compile(r"(?:\A|/)git(?: -\S+(?: [^-\s]\S*)?)* (?:push|send-email|request-pull)\b")


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The circumstances that determine a call's effect and the decision. The defaults are the strictest."""

    isolated: bool = False
    """Whether a sandbox isolates commands."""
    sealed: bool = False
    """Whether the sandbox also blocks network access."""
    covered: bool = False
    """Whether a checkpoint restores everything that a command could change."""
    trusted: bool = False
    """Whether only trusted people influenced the turn."""
    tainted: bool = False
    """Whether untrusted content may influence the call."""


STRICTEST = Situation()


class EffectCase(NamedTuple):
    """A case of the table. `isolated` is true if the call runs in a sealed sandbox or is not a command."""

    effect: Effect
    trusted: bool
    tainted: bool
    isolated: bool


_ROWS: tuple[tuple[Effect, bool | None, bool | None, bool | None, EffectAnswer], ...] = (
    # Effect, trusted, tainted, isolated (None matches both), decision. The first matching row counts.
    ("read", None, False, None, "allow"),
    ("read", None, True, None, "guard"),
    ("contained", None, None, False, "ask"),
    ("contained", True, None, True, "allow"),
    ("contained", False, False, True, "allow"),
    ("contained", False, True, True, "guard"),
    ("outward", None, None, None, "ask"),
    ("lasting", None, None, None, "ask"),
    ("unknown", None, None, None, "ask"),
)


def _answers() -> Iterator[tuple[EffectCase, EffectAnswer]]:
    for case in map(EffectCase._make, product(get_args(Effect), (True, False), (True, False), (True, False))):
        fitting = (row for row in _ROWS if row[0] == case.effect)
        yield case, next(row[4] for row in fitting if all(map(_fits, row[1:4], case[1:])))


def _fits(wanted: bool | None, is_so: bool) -> bool:
    return wanted is None or wanted is is_so


ANSWERS: Mapping[EffectCase, EffectAnswer] = MappingProxyType(dict(_answers()))
"""Decision for each case in a profile with `effects`, if no rule matches the call."""

WORDS: Mapping[Effect, str] = MappingProxyType(
    {
        "read": "reading the agent's own folders and memory, this conversation, the web and MCP servers",
        "contained": "changes that /undo can revert, and commands in a sandbox without network access",
        "outward": "calls that send something outside this machine or this conversation",
        "lasting": "changes that /undo cannot revert",
        "unknown": "calls with an unknown effect, such as commands without a sandbox",
    }
)


def effect_of(action: Action, traits: TraitsByName, situation: Situation) -> Effect:
    """Return the most far-reaching effect of an action. Runs in time linear in the length of its text."""
    tool, detail = traits.of(action.tool), action.detail
    if tool.for_trusted and not situation.trusted:
        return "unknown"
    if tool.takes_commands and tool.effect == "unknown":
        return _effect_of_command(action, traits, situation)
    if detail in tool.harmless:
        return "read"
    match tool.names:
        case "listed" | "shown":
            return "read" if _READABLE.fullmatch(detail) else "unknown"
        case "edited" | "replaced":
            if not _WRITABLE.fullmatch(detail):
                return "lasting"
            return "lasting" if situation.tainted and is_executed(detail) else "contained"
        case "sent":
            return "read" if _READABLE.fullmatch(detail) else "outward"
        case _:
            return tool.effect


def answer_to(action: Action, traits: TraitsByName, situation: Situation) -> tuple[Effect, EffectAnswer]:
    effect = effect_of(action, traits, situation)
    isolated = situation.sealed or not traits.of(action.tool).runs_commands
    return effect, ANSWERS[EffectCase(effect, situation.trusted, situation.tainted, isolated)]


def can_stage(actions: Sequence[Action], traits: TraitsByName, *, isolated: bool) -> bool:
    """Return True if a call may wait for the end of its turn, because its result is not needed.

    Either the tool's traits declare this for every action, or the call is a command that pushes or sends mail and
    otherwise only reads.
    """
    parts = [action for action in actions if not action.whole]
    if any(traits.of(action.tool).takes_commands for action in parts):
        leaves = [_PUSHES.match(action.detail) or _MAILS.match(action.detail) for action in parts]
        return any(leaves) and all(
            leaving or only_reads(action, isolated=isolated) for leaving, action in zip(leaves, parts, strict=True)
        )
    return bool(parts) and all(traits.of(action.tool).can_stage for action in parts)


def only_reads(action: Action, *, isolated: bool) -> bool:
    """Return True if a part of a command only reads.

    Without a sandbox, the files that it reads must also be known and in the agent's own folders.
    """
    if action.opaque or not action.harmless or action.writes != ():
        return False
    if isolated:
        return True
    return action.reads is not None and all(map(_READABLE.fullmatch, action.reads))


def _effect_of_command(action: Action, traits: TraitsByName, situation: Situation) -> Effect:
    if not situation.trusted:
        return "unknown"
    detail = action.detail
    if only_reads(action, isolated=situation.isolated):
        return "read"
    if situation.sealed:
        if not situation.covered or _changes_git(action, detail, tainted=situation.tainted):
            return "lasting"
        return "lasting" if situation.tainted and _writes_executed(action, detail) else "contained"
    if _PUSHES.match(detail) or fetched_by((action,), traits):
        return "outward"
    return "contained" if action.harmless and not action.opaque and action.writes else "unknown"


def _changes_git(action: Action, detail: str, *, tainted: bool) -> bool:
    if _is_git(detail):
        return tainted
    return any(map(_GIT_FOLDER.search, (detail, *(action.writes or ()))))


def _writes_executed(action: Action, detail: str) -> bool:
    """Return True if a command names a file that other programs execute or read settings from.

    The program of the command and the files that it runs do not count.
    """
    if action.writes is not None:
        return any(map(is_executed, action.writes))
    run = {PurePosixPath(name).name for name in action.runs}
    words = _WORDS.findall(detail)[1:]
    return any(is_executed(word) and PurePosixPath(word).name not in run for word in words)


def _is_git(detail: str) -> bool:
    return detail.partition(" ")[0].rpartition("/")[2] == "git"


def in_words(situation: Situation) -> str:
    if situation.sealed:
        return (
            "Reads, commands in the sandbox and changes that /undo can revert need no approval. Shoal asks "
            "before anything that leaves this machine or this conversation, or that cannot be undone."
        )
    where = "the sandbox has network access" if situation.isolated else "no sandbox isolates them"
    return (
        "Reading files and changing files in the workspace need no approval. Shoal asks before other commands, "
        f"because {where}, and before anything that leaves this machine or this conversation, or that cannot be "
        "undone."
    )
