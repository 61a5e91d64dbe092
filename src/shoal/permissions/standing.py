"""Find the narrowest rule that would let a call run without asking. All functions are pure.

    call                            the rule covers
    -----------------------------   ----------------------------------------------------------------------------
    git push                        the address and branch that it pushes to, if the call runs nothing else
    any other command               exactly this command, if its effect depends only on its words
    a message, a page, a file       this recipient, address or path
    another tool, or an MCP tool    exactly these arguments

A call gets no rule if it has a lasting effect, contains a secret, hides what it runs, or runs content that may
change while its words stay the same. The executor also requests no rule if the approval has a special reason, such
as untrusted content.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from shoal.kernel import lazy_re
from shoal.kernel.permissions import NO_COVERAGE, NO_RULE, PUSH, Action, Asker, Coverage, StandingRule
from shoal.kernel.phrases import short_line
from shoal.kernel.records import Approval
from shoal.kernel.settings import OverrideSettings
from shoal.kernel.traits import TraitsByName
from shoal.permissions.effects import Situation, effect_of
from shoal.permissions.profiles import Profile, decide
from shoal.permissions.rule_words import literal_pattern, words_of
from shoal.permissions.taint import CONFIDENTIAL, sink_of

PATTERN_CHARS_MAX = 300
WORDS_CHARS_MAX = 300
OWNER_HERE = frozenset({"terminal:owner", "web:owner"})
"""Identities of the owner in the terminal and on the page. Both belong to the same person (decision 055).

The API for programs is excluded.
"""
_GIT_FILE = lazy_re.compile(r"(?s:.*)/(\.git(/(?s:.*))?|\.gitconfig|\.config/git/config)")
"""Matches files that control which programs git runs. Writing to them needs approval."""


def standing_rule(
    actions: Sequence[Action], covers: Coverage, profile: Profile, situation: Situation, asker: Asker, agent: str
) -> StandingRule:
    """Return the narrowest rule that covers these actions, or NO_RULE if such a rule is impossible."""
    names: list[str] = []
    for action in actions:
        if action.whole or decide(profile, action, situation).decision == "allow":
            continue
        name = _narrowest(action, profile.traits, situation)
        if not name.isprintable() or not 0 < len(name) <= PATTERN_CHARS_MAX:
            return NO_RULE
        names.append(name)
    only_pushes = all(PUSH in name for name in names)
    if not names or not (covers == NO_COVERAGE or (only_pushes and covers_only_git(covers))):
        return NO_RULE
    allow = tuple(literal_pattern(name) for name in dict.fromkeys(names))
    words = " and ".join(words_of(pattern, profile.traits) for pattern in allow)
    channel = "" if asker.kind == "direct" else f"{asker.platform}:{asker.channel}"
    users = asker.identities
    if not OWNER_HERE.isdisjoint(users):
        users = tuple(dict.fromkeys((*users, *sorted(OWNER_HERE))))
    return StandingRule(allow, short_line(words, WORDS_CHARS_MAX), agent, users, channel)


def covers_only_git(covers: Coverage) -> bool:
    return not (covers.others or covers.sends) and all(_GIT_FILE.fullmatch(file.path) for file in covers.files)


def _narrowest(action: Action, traits: TraitsByName, situation: Situation) -> str:
    """Return the most specific text that a rule for the action can match. Returns an empty string if a rule would
    have to cover more.
    """
    tool = traits.of(action.tool)
    lasts = effect_of(action, traits, situation) == "lasting" or tool.harm in ("agent", "lasting")
    if action.opaque or lasts or sink_of(action, traits, situation) == CONFIDENTIAL:
        return ""
    if tool.takes_commands:
        return next((name for name in action.also if not name.startswith("tool:write:")), "")
    return action.text if action.detail else ""


def override_of(rule: StandingRule) -> OverrideSettings:
    if rule.channel:
        return OverrideSettings(agents=(rule.agent,), users=rule.users, channels=(rule.channel,), allow=rule.allow)
    return OverrideSettings(agents=(rule.agent,), users=rule.users, kinds=("direct",), allow=rule.allow)


def with_past(rule: StandingRule, actions: Sequence[str], past: Sequence[Approval]) -> StandingRule:
    """Return the rule with the number of similar requests that were decided, and the number of those that were allowed.

    Only requests from the same agent to the same person count.
    """
    same = [approval for approval in past if approval.item.agent == rule.agent and approval.asked_by in rule.users]
    same = [
        approval for approval in same if approval.actions == tuple(actions) or approval.item.always.allow == rule.allow
    ]
    allowed = sum(approval.state in ("allow", "used") for approval in same)
    return replace(rule, answered=allowed + sum(approval.state == "deny" for approval in same), allowed=allowed)
