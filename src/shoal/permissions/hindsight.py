"""Replay past checks with other rules, and suggest rules from people's decisions. All functions are pure.

A rule is suggested for exactly the calls that people were asked about and always allowed. It never covers a call
that a deny rule matches, that hides what it runs, or whose content may change while its words stay the same.
Approvals that untrusted content caused, and approvals that were withdrawn or expired, are ignored.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from shoal.kernel.ids import ThreadId
from shoal.kernel.permissions import NO_COVERAGE, Action, Decision
from shoal.kernel.records import Approval, PastCheck
from shoal.permissions.effects import STRICTEST, Situation
from shoal.permissions.profiles import Profile, decide
from shoal.permissions.rule_words import literal_pattern
from shoal.permissions.standing import PATTERN_CHARS_MAX, covers_only_git
from shoal.text.toml_edit import literal

ASKED_MIN = 3
"""Minimum number of times that people must have allowed a call before a rule for it is suggested."""


class ChangedDecision(msgspec.Struct, frozen=True):
    """An action that the current rules would decide differently than the rules at the time. `rule` is the rule
    that matches it now, or an empty string.
    """

    action: str
    before: Decision
    after: Decision
    rule: str
    count: int
    thread: str
    at: datetime


def changed_decisions(
    checks: Iterable[PastCheck], profile: Profile, situation: Situation = STRICTEST
) -> list[ChangedDecision]:
    from shoal.permissions.actions import action_of  # Imported here because it is slow.

    changes: list[ChangedDecision] = []
    for check in checks:
        now, before = decide(profile, action_of(check.action), situation), check.decision
        if now.decision != before:
            asked = check.count, check.thread, check.at
            changes.append(ChangedDecision(check.action, before, now.decision, now.rule, *asked))
    return sorted(changes, key=lambda change: (-change.count, change.action))


class SuggestedRule(msgspec.Struct, frozen=True):
    """A rule for calls that people were asked about `asked` times and always allowed."""

    agent: str
    allow: tuple[str, ...]
    shown: str
    """Text of the call as shown in its approval."""
    asked: int
    since: datetime
    accepted: bool = False
    """Whether the configuration file already contains the rule."""

    @property
    def text(self) -> str:
        allow = ", ".join(map(literal, self.allow))
        return f"[[permissions.overrides]]\nagents = [{literal(self.agent)}]\nallow = [{allow}]"


def suggestions(
    approvals: Sequence[Approval],
    agent_of: Mapping[ThreadId, str],
    profile_of: Mapping[str, Profile],
    situation: Situation = STRICTEST,
) -> list[SuggestedRule]:
    """Return the rules that these decisions suggest, sorted by the number of approvals that each would have saved."""
    groups: dict[tuple[str, tuple[str, ...]], list[Approval]] = {}
    for approval in approvals:
        agent = agent_of.get(approval.thread, "")
        if agent in profile_of:
            groups.setdefault((agent, approval.actions), []).append(approval)
    suggestions: list[SuggestedRule] = []
    for (agent, actions), asked in groups.items():
        if any(approval.state == "deny" for approval in asked):
            continue
        allowed = [approval for approval in asked if approval.state in ("allow", "used") and _a_rule_would_do(approval)]
        patterns = _patterns(actions, profile_of[agent], situation) if len(allowed) >= ASKED_MIN else ()
        if patterns:
            since = min(approval.created_at for approval in allowed)
            suggestions.append(SuggestedRule(agent, patterns, allowed[0].shown, len(allowed), since))
    return sorted(suggestions, key=lambda suggestion: (-suggestion.asked, suggestion.agent, suggestion.allow))


def _a_rule_would_do(asked: Approval) -> bool:
    """Return True if a rule would have avoided this approval without allowing more than people saw.

    The approval must have no special reason, such as untrusted content. It may cover only git's own files, for a
    single git command.
    """
    if asked.needs_trust or asked.reason:
        return False
    is_git = len(asked.actions) == 1 and asked.actions[0].startswith("tool:bash:git ")
    return asked.covers == NO_COVERAGE or (is_git and covers_only_git(asked.covers))


def _patterns(actions: Sequence[str], profile: Profile, situation: Situation) -> tuple[str, ...]:
    from shoal.permissions.actions import action_of  # Imported here because it is slow.

    lines: list[str] = []
    for text in actions:
        action = action_of(text)
        ruling = decide(profile, action, situation)
        is_unclear = action.opaque or (text.startswith("tool:bash:") and action == Action(text))
        if ruling.decision == "deny" or is_unclear or len(text) > PATTERN_CHARS_MAX:
            return ()
        if ruling.decision == "ask":
            lines.append(literal_pattern(text))
    return tuple(dict.fromkeys(lines))
