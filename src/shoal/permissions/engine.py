"""Decides: pure functions from a profile and actions to allow, ask or deny.

| what matches the action | answer |
|---|---|
| any deny pattern, of the profile, of what it extends, or of an override | deny |
| else, in the first layer that has a match: an allow pattern (of an opaque action: one that names it) | allow |
| the same: an ask pattern | ask |
| nothing | deny |

Of several actions the strictest answer counts. Views that only serve deny patterns (`Action.whole`) never allow.
"""

from collections.abc import Sequence
from functools import lru_cache

from shoal.domain.permissions import STRICTNESS, Action, Decision, Ruling
from shoal.permissions.rules import Profile, Rule


def decide(profile: Profile, action: Action) -> Ruling:
    """The answer for one action. Total and deterministic; linear in the length of the action's text."""
    allowing: Rule | None = None
    asking: Rule | None = None
    for text in (action.text, *action.also):
        for rule in profile.matching(text):
            if rule.list == "deny":
                return Ruling(action.text, "deny", rule.shown)
            if rule.list == "ask":
                asking = _nearer(asking, rule)
            if rule.list == "allow" and _reaches(rule, action, text):
                allowing = _nearer(allowing, rule)
    if allowing is not None and (asking is None or allowing.layer <= asking.layer):
        return Ruling(action.text, "allow", allowing.shown)
    if asking is not None:
        return Ruling(action.text, "ask", asking.shown)
    return Ruling(action.text, "deny")


def _nearer(one: Rule | None, other: Rule) -> Rule:
    """The rule of the layer that is asked first; of one layer, the one that stands first."""
    return other if one is None or other.layer < one.layer else one


def _reaches(rule: Rule, action: Action, text: str) -> bool:
    """Whether an allow rule counts: an opaque action has to be named."""
    return not action.opaque or rule.names(text, action.naming or text)


def decide_all(profile: Profile, actions: Sequence[Action]) -> tuple[Decision, tuple[Ruling, ...]]:
    """The strictest answer over all actions, and the ruling of each; a view for deny patterns is listed when denied.

    No action at all, or nothing but such views, is denied.
    """
    rulings: list[Ruling] = []
    parts = 0
    for action in actions:
        ruling = decide(profile, action)
        if not action.whole:
            parts += 1
            rulings.append(ruling)
        elif ruling.decision == "deny" and ruling.rule:
            rulings.append(ruling)
    if not parts:
        return "deny", tuple(rulings)
    return max(rulings, key=lambda ruling: STRICTNESS[ruling.decision]).decision, tuple(rulings)


@lru_cache(maxsize=4096)
def hidden(profile: Profile, tool_name: str) -> bool:
    """Whether every call of the tool would be denied, whatever its arguments; such a tool is not shown to the model.

    True when a deny pattern matches everything of the tool, or no allow or ask pattern can match anything of it.
    """
    alive, matching_all = profile.automaton.after(f"tool:{tool_name}:")
    if any(profile.rules[number].list == "deny" for number in matching_all):
        return True
    return not any(profile.rules[number].list in ("allow", "ask") for number in alive)
