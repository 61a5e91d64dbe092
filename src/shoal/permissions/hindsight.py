"""What other rules would have decided of what was checked, and which rules people's decisions speak for. Pure.

A rule is suggested for exactly what people were asked about and always allowed: never for what a deny rule matches, for
what hides what it runs, or for content that may change behind the same words. What was raised by untrusted content, or
taken back or left open until it lapsed, speaks neither for a rule nor against it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from shoal.kernel.ids import ThreadId
from shoal.kernel.permissions import NO_COVERAGE, Action, Coverage, Decision
from shoal.kernel.records import Approval, PastCheck
from shoal.permissions.effects import STRICTEST, Situation
from shoal.permissions.profiles import Profile, decide
from shoal.permissions.rule_words import literal_pattern
from shoal.text.toml_edit import literal

ASKED_MIN = 3
"""How often the same was asked and allowed before a rule is suggested for it."""
PATTERN_CHARS_MAX = 300
_GIT_FILE = re.compile(r"(?s:.*)/(\.git(/(?s:.*))?|\.gitconfig|\.config/git/config)")
"""What decides what git runs; agents are asked before they write there."""


class ChangedDecision(msgspec.Struct, frozen=True):
    """An action of which the rules would have decided `after` by `rule` (empty: none matches) instead of `before`."""

    action: str
    before: Decision
    after: Decision
    rule: str
    count: int
    thread: str
    at: datetime


def decided_anew(
    checks: Iterable[PastCheck], profile: Profile, situation: Situation = STRICTEST
) -> list[ChangedDecision]:
    """Those of which the profile decides otherwise than was decided, the most frequent first."""
    from shoal.permissions.actions import action_of  # a slow import

    found: list[ChangedDecision] = []
    for check in checks:
        now, before = decide(profile, action_of(check.action), situation), check.decision
        if now.decision != before:
            asked = check.count, check.thread, check.at
            found.append(ChangedDecision(check.action, before, now.decision, now.rule, *asked))
    return sorted(found, key=lambda one: (-one.count, one.action))


class SuggestedRule(msgspec.Struct, frozen=True):
    """A rule for what was `asked` so often and always allowed. `allow` are patterns, `shown` what people saw.

    `accepted`: it is in the file already."""

    agent: str
    allow: tuple[str, ...]
    shown: str
    asked: int
    since: datetime
    accepted: bool = False

    @property
    def text(self) -> str:
        """The lines of shoal.toml that make it hold."""
        allow = ", ".join(map(literal, self.allow))
        return f"[[permissions.overrides]]\nagents = [{literal(self.agent)}]\nallow = [{allow}]"


def suggestions(
    approvals: Sequence[Approval],
    agent_of: Mapping[ThreadId, str],
    profile_of: Mapping[str, Profile],
    situation: Situation = STRICTEST,
) -> list[SuggestedRule]:
    """The rules that these decisions speak for, those first that would have saved most questions."""
    groups: dict[tuple[str, tuple[str, ...]], list[Approval]] = {}
    for approval in approvals:
        agent = agent_of.get(approval.thread, "")
        if agent in profile_of:
            groups.setdefault((agent, approval.actions), []).append(approval)
    found: list[SuggestedRule] = []
    for (agent, actions), asked in groups.items():
        if any(one.state == "deny" for one in asked):
            continue
        allowed = [one for one in asked if one.state in ("allow", "used") and _a_rule_would_do(one)]
        patterns = _patterns(actions, profile_of[agent], situation) if len(allowed) >= ASKED_MIN else ()
        if patterns:
            since = min(one.created_at for one in allowed)
            found.append(SuggestedRule(agent, patterns, allowed[0].shown, len(allowed), since))
    return sorted(found, key=lambda one: (-one.asked, one.agent, one.allow))


def _a_rule_would_do(asked: Approval) -> bool:
    """Whether a rule would have saved this question, and would allow no more than was shown: it had no reason of its
    own, such as untrusted content, and what it covers, if anything, are the files of git for one git command."""
    if asked.needs_trust or asked.reason:
        return False
    is_git = len(asked.actions) == 1 and asked.actions[0].startswith("tool:bash:git ")
    return asked.covers == NO_COVERAGE or (is_git and covers_only_git(asked.covers))


def covers_only_git(covers: Coverage) -> bool:
    """Whether what a call runs beside its own words is what decides what git runs, and nothing else."""
    return not (covers.others or covers.sends) and all(_GIT_FILE.fullmatch(file.path) for file in covers.files)


def _patterns(actions: Sequence[str], profile: Profile, situation: Situation) -> tuple[str, ...]:
    """Patterns for exactly what the profile asks about; none where they would not settle it."""
    from shoal.permissions.actions import action_of  # a slow import

    found: list[str] = []
    for text in actions:
        action = action_of(text)
        ruling = decide(profile, action, situation)
        is_unclear = action.opaque or (text.startswith("tool:bash:") and action == Action(text))
        if ruling.decision == "deny" or is_unclear or len(text) > PATTERN_CHARS_MAX:
            return ()
        if ruling.decision == "ask":
            found.append(literal_pattern(text))
    return tuple(dict.fromkeys(found))
