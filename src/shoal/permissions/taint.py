"""Taint: in a tainted turn, calls that could leak data or do harm need approval, regardless of allow-lists.

Sources are content that a tool marks as untrusted (web pages, MCP, tainted files), messages from untrusted people, and
any other text that such content influenced (docs/security.md lists the ways). They may influence everything that the
model does afterward. The taint ends when the conversation is cleared. It also ends with a message from a trusted person
if the model's window no longer contains untrusted content. A summary of untrusted content is untrusted.

Sinks are the calls that are not on an allow-list of harmless ones. In a turn that only trusted people influenced,
contained calls are harmless too (`permissions.effects`), because they send nothing out, can be undone, and taint what
they write.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Literal

import msgspec
from msgspec.structs import replace

from shoal.kernel import lazy_re
from shoal.kernel.events import (
    AssistantSaid,
    Cleared,
    Compacted,
    Event,
    FilesRestored,
    Revised,
    Steered,
    ToolFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.messages import Caller
from shoal.kernel.permissions import Action, Decision
from shoal.kernel.traits import Names, TraitsByName
from shoal.kernel.untrusted import short_source
from shoal.permissions.addresses import asked_address
from shoal.permissions.code_files import is_executed
from shoal.permissions.effects import STRICTEST, Situation, answer_to, effect_of
from shoal.permissions.profiles import Profile
from shoal.permissions.secret_files import is_secret_file

SOURCES_MAX = 16
_BRACKETS = str.maketrans("()", "[]")

_FILES: tuple[Names, ...] = ("listed", "shown", "edited", "replaced", "sent")
_INSIDE = lazy_re.compile(r"(?!.*(?:^|/)\.\.(?:/|$))(?:/(?:workspace|scratch)(?:/.*)?|(?![/~]|host:).*)", re.DOTALL)
_GIT = lazy_re.compile(r"(?:.*/)?\.git(?:/.*)?", re.DOTALL)
_SECRET = lazy_re.compile(
    r"(?<![\w.-])(?:\.env(?:\.[\w.-]+)?|\.netrc|\.npmrc|\.pypirc|\.pgpass|\.git-credentials|shadow|environ"
    r"|id_(?:rsa|dsa|ecdsa|ed25519))(?![\w-])"
    r"|\.(?:ssh|gnupg|aws|kube)(?:/|$)|\.(?:pem|p12|pfx|key|kdbx)(?:$|[\s'\"])"
    r"|credential|secret|passw(?:or)?d|api[_-]?key|token",
    re.IGNORECASE,
)

CONFIDENTIAL = "access something that looks like a secret"
OUTSIDE = "reach the network or act outside the workspace"
MESSAGE_OF = "a message of "
"""Prefix of a source's name if the source is a person's message."""


class Source(msgspec.Struct, frozen=True):
    """Untrusted content in the window: the number of its event and its name."""

    seq: int
    name: str


class TaintState(msgspec.Struct, frozen=True):
    """The untrusted content in a thread's window, and whether it may influence the model now."""

    sources: tuple[Source, ...] = ()
    active: bool = False

    def after(self, event: Event) -> "TaintState":
        name = source_of(event)
        if name:  # above the limit, the newest source replaces the one before it
            return TaintState((*self.sources[: SOURCES_MAX - 1], Source(event.seq, name)), active=True)
        match event.data:
            case UserSaid(origin="person", backfill=False) | Steered():
                return self if self.sources else TaintState()
            case Compacted() as compacted:
                left = tuple(source for source in self.sources if source.seq > compacted.upto_seq)
                name = compacted.tainted_by or self.summarised(compacted.upto_seq)  # old events have no `tainted_by`
                if compacted.summary and name:
                    return TaintState((Source(event.seq, name), *left), active=True)
                return TaintState(left, self.active)
            case Cleared():
                return TaintState()
            case _:
                return self

    def within(self, window_seq: int) -> "TaintState":
        """Return this state without the sources from events before `window_seq`, which are no longer in the window."""
        sources = tuple(source for source in self.sources if source.seq >= window_seq)
        return msgspec.structs.replace(self, sources=sources)

    @property
    def shown(self) -> str:
        """The names of the first three sources, to show in parentheses. Other people may have chosen these names."""
        shown = (" ".join(source.name.split()).translate(_BRACKETS) for source in self.sources)
        names = list(dict.fromkeys(map(short_source, shown)))
        if not names:
            return "untrusted content read earlier"
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return ", ".join(names[:3]) + more

    @property
    def by_people(self) -> bool:
        return any(MESSAGE_OF in source.name for source in self.sources)

    @property
    def cause(self) -> str:
        """The reason for asking a person, as the beginning of a sentence.

        If all sources are messages, it names the people who wrote them.
        """
        names = [source.name for source in self.sources]
        if not names or not all(name.startswith(MESSAGE_OF) for name in names):
            return f"Untrusted content was read in this conversation ({self.shown})"
        people = TaintState(tuple(Source(0, name.removeprefix(MESSAGE_OF)) for name in names)).shown
        return f"Someone who wrote in this conversation is not on your list of trusted people ({people})"

    def summarised(self, upto_seq: int) -> str:
        name = next((source.name for source in self.sources if source.seq <= upto_seq), "")
        if not name and not self.active:
            return ""
        return name if name.startswith("a summary") else f"a summary of {name or 'untrusted content'}"


def source_of(event: Event) -> str:
    match event.data:
        case ToolFinished(tainted_by=name) | UserSaid(tainted_by=name) | TurnStarted(tainted_by=name) if name:
            return name
        case FilesRestored(tainted_by=name) if name:
            return name
        case UserSaid(caller=Caller(tainted_by=name)) if name:
            return name
        case AssistantSaid(tainted_by=name) if not event.turn:
            # A restored message may lack the content that tainted it.
            return name
        case UserSaid(author=author) | Steered(author=author) | Revised(author=author) if not author.trusted:
            return f"{MESSAGE_OF}{author.name or author.id or 'an unknown person'}"
        case UserSaid(refers_to=references, attachments=files):
            return next((reference.tainted_by for reference in (*references, *files) if reference.tainted_by), "")
        case _:
            return ""


def taint_of(events: Iterable[Event]) -> str:
    """Return the names of the untrusted content that influences a conversation after these events, or an empty
    string.
    """
    state = reduce(TaintState.after, events, TaintState())
    return state.shown if state.active else ""


def no_address(_address: str) -> bool:
    return False


def sink_of(
    action: Action,
    traits: TraitsByName,
    situation: Situation = STRICTEST,
    is_given: Callable[[str], bool] = no_address,
) -> str:
    """Return the harm that an action could do in a tainted turn, as the end of "it would …". Returns an empty string if
    there is none.

    `is_given` returns whether a URL was given and not invented by the model (`permissions.addresses`).
    """
    tool, detail = traits.of(action.tool), action.detail
    address = asked_address(tool, detail)
    if situation.trusted and (tool.names == "query" or (address and is_given(address))):
        return ""
    is_secret = tool.harm != "lasting" and _SECRET.search(detail) is not None
    if is_secret or (tool.names in _FILES and is_secret_file(detail)):
        return CONFIDENTIAL
    if detail in tool.harmless:
        return ""
    if tool.for_trusted and not situation.trusted:
        return OUTSIDE
    if tool.takes_commands and answer_to(action, traits, replace(situation, tainted=True))[1] == "allow":
        return ""
    match tool.harm or _harm_by_name(action.tool):
        case "none":
            return ""
        case "file":
            if not _INSIDE.fullmatch(detail) or _GIT.fullmatch(detail):
                return "write outside the workspace"
            return "write a file that other programs execute or read as configuration" if is_executed(detail) else ""
        case "lasting":
            return "write something that later conversations read"
        case "command":
            return _command_sink(action, detail) if detail else ""
        case "agent":
            return "change the agent itself"
        case "message":
            return "write to someone else"
        case "outside":
            return OUTSIDE


def _harm_by_name(name: str) -> Literal["agent", "message", "outside"]:
    if name.startswith(("self_edit", "set_")) or name.endswith(("_doc", "_skill")):
        return "agent"
    return "message" if name.startswith("message") else "outside"


def _command_sink(action: Action, detail: str) -> str:
    from shoal.permissions.actions import judged_by_words

    known = judged_by_words(detail) if not (action.harmless or action.opaque) and action.reads == () else action
    writes = any(name.startswith("tool:write:") for name in action.also)
    if writes and not known.harmless:
        return "write outside the workspace, or to a file that something may execute later"
    if action.opaque:
        return "run something that cannot be analyzed"
    if not known.harmless:
        return "run a program in a way that is not known to be harmless"
    if known.reads is None:
        return "read files that Shoal cannot determine in advance"
    if any(_SECRET.search(name) or is_secret_file(name) for name in known.reads):
        return "access something that looks like a secret"
    return ""


def gate(
    decision: Decision,
    actions: Sequence[Action],
    taint: TaintState,
    profile: Profile,
    situation: Situation = STRICTEST,
    is_given: Callable[[str], bool] = no_address,
) -> tuple[Decision, str]:
    """Tighten a decision if the turn is tainted.

    Returns the decision, and the reason to show to people. The reason is empty if taint did not change the decision.
    Actions that a `trusted_allow` rule of the profile matches are exempt. An opaque action is exempt only if such a
    rule names it explicitly.
    """
    if not taint.active or decision == "deny":
        return decision, ""
    for action in actions:
        harm = "" if action.whole else sink_of(action, profile.traits, situation, is_given)
        if harm and not trusted(profile, action) and not _owner_allows_read(profile, action, harm, situation):
            return "ask", f"{taint.cause}, and this would {harm}."
    return decision, ""


def _owner_allows_read(profile: Profile, action: Action, harm: str, situation: Situation) -> bool:
    """Return True if one of the owner's own rules allows a trusted person's read that shows no secret.

    Such a rule names what may be read, so it also applies in tainted turns.
    """
    if not situation.trusted or harm == CONFIDENTIAL or effect_of(action, profile.traits, situation) != "read":
        return False
    allowing = (rule for text in (action.text, *action.also) for rule in profile.matching(text))
    return any(rule.list == "allow" and rule.layer in profile.own_layers and rule.narrow for rule in allowing)


def trusted(profile: Profile, action: Action) -> bool:
    return any(
        rule.list == "trusted_allow" and (not action.opaque or rule.names(text, action.naming or text))
        for text in (action.text, *action.also)
        for rule in profile.matching(text)
    )
