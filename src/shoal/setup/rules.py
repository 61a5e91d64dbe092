"""The owner's permission rules, and edits to shoal.toml that add, change or remove one rule.

The rules are in `[[permissions.overrides]]`, which apply to certain agents, channels and people, or in custom profiles.
Built-in profiles cannot be changed.
"""

import hashlib
from typing import cast

import msgspec

from shoal.kernel.errors import Conflict, NotFound
from shoal.kernel.settings import OverrideSettings, PermissionsSettings, ProfileSettings
from shoal.kernel.untrusted import decode_toml
from shoal.permissions.profiles import RuleList
from shoal.text.toml_edit import Value, with_element, with_value

LISTS: tuple[RuleList, ...] = ("deny", "allow", "ask", "trusted_allow")
_SELECTORS = ("agents", "platforms", "channels", "kinds", "users", "roles")
_OVERRIDES = ("permissions", "overrides")
GONE = "This rule is no longer in shoal.toml. Reload the rules."


class OwnRule(msgspec.Struct, frozen=True):
    """A pattern in one of the rule lists of `profile` or of an override.

    A rule in an override applies to everyone who matches all selectors of the override. Without selectors, it applies
    to everyone.
    """

    list: RuleList
    pattern: str
    profile: str = ""
    agents: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Identifier that is derived from the rule's content."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    @property
    def place(self) -> tuple[object, ...]:
        return (self.profile, *(getattr(self, name) for name in _SELECTORS))


def own_rules(settings: PermissionsSettings) -> list[OwnRule]:
    """Return all rules: first those of overrides, in the order in which they are checked, then those of profiles."""
    rules = [
        OwnRule(kind, pattern, **{name: getattr(override, name) for name in _SELECTORS})
        for override in reversed(settings.overrides)
        for kind in LISTS
        for pattern in getattr(override, kind)
    ]
    return rules + [
        OwnRule(kind, pattern, name)
        for name, profile in settings.profiles.items()
        for kind in LISTS
        for pattern in getattr(profile, kind)
    ]


def with_rule(text: str, was: OwnRule | None, now: OwnRule | None) -> str:
    """Return the text of shoal.toml with `was` replaced by `now`. If `was` is None, add a rule. If `now` is None,
    remove one.

    Raises Conflict if `was` does not exist, NotFound for an unknown profile, and CannotEdit if the rule is written
    in a form that cannot be edited reliably.
    """
    if was is not None and (now is None or was.place == now.place):
        return _changed(text, was, now)
    if was is not None:
        text = _changed(text, was, None)
    if now is None:
        return text
    if now.profile:
        lists = _profile(text, now.profile)
        return with_value(text, ("permissions", "profiles", now.profile, now.list), (*lists[now.list], now.pattern))
    selectors: dict[str, Value] = {name: getattr(now, name) for name in _SELECTORS if getattr(now, name)}
    return with_element(text, _OVERRIDES, len(_overrides(text)), {**selectors, now.list: (now.pattern,)})


def with_profile(text: str, name: str, source: ProfileSettings) -> str:
    """Return the text of shoal.toml with a new profile that has the rules of `source`. Raises CannotEdit."""
    fields: dict[str, Value] = {kind: patterns for kind in LISTS if (patterns := getattr(source, kind))}
    if source.effects:
        fields["effects"] = True
    if source.extends:
        fields = {"extends": source.extends, **fields}
    for key, value in (fields or {"allow": ()}).items():
        text = with_value(text, ("permissions", "profiles", name, key), value)
    return text


def with_override(text: str, override: OverrideSettings) -> str:
    """Return the text of shoal.toml with an override added at the end. Raises CannotEdit."""
    fields: dict[str, Value] = {name: value for name in (*_SELECTORS, *LISTS) if (value := getattr(override, name))}
    return with_element(text, _OVERRIDES, len(_overrides(text)), fields)


def without_override(text: str, override: OverrideSettings) -> str:
    """Return the text of shoal.toml without an override. Raises Conflict if it does not exist, and CannotEdit."""
    for number, entry in reversed([*enumerate(_overrides(text))]):
        if entry == override:
            return with_element(text, _OVERRIDES, number, None)
    raise Conflict(GONE)


def _changed(text: str, was: OwnRule, now: OwnRule | None) -> str:
    if was.profile:
        before = _profile(text, was.profile)
        lists = _put(before, was, now)
        for kind in LISTS:
            if lists[kind] != before[kind]:
                text = with_value(text, ("permissions", "profiles", was.profile, kind), lists[kind])
        return text
    for number, override in reversed([*enumerate(_overrides(text))]):
        selectors = {name: getattr(override, name) for name in _SELECTORS}
        if ("", *selectors.values()) == was.place and was.pattern in getattr(override, was.list):
            lists = _put({kind: getattr(override, kind) for kind in LISTS}, was, now)
            rules: dict[str, Value] = {kind: patterns for kind, patterns in lists.items() if patterns}
            chosen: dict[str, Value] = {name: names for name, names in selectors.items() if names}
            return with_element(text, _OVERRIDES, number, {**chosen, **rules} if rules else None)
    raise Conflict(GONE)


def _put(lists: dict[RuleList, tuple[str, ...]], was: OwnRule, now: OwnRule | None) -> dict[RuleList, tuple[str, ...]]:
    if was.pattern not in lists[was.list]:
        raise Conflict(GONE)
    at = lists[was.list].index(was.pattern)
    stays = now is not None and now.list == was.list
    new = (now.pattern,) if now is not None else ()
    changed: dict[RuleList, tuple[str, ...]] = {**lists}
    changed[was.list] = (*lists[was.list][:at], *(new if stays else ()), *lists[was.list][at + 1 :])
    if now is not None and not stays:
        changed[now.list] = (*lists[now.list], now.pattern)
    return changed


def _permissions(text: str) -> PermissionsSettings:
    content = decode_toml(text).get("permissions", {})
    rules = {key: content[key] for key in ("profiles", "overrides") if key in content}
    return msgspec.convert(rules, PermissionsSettings)


def _overrides(text: str) -> tuple[OverrideSettings, ...]:
    return _permissions(text).overrides


def _profile(text: str, name: str) -> dict[RuleList, tuple[str, ...]]:
    profile = _permissions(text).profiles.get(name)
    if profile is None:
        raise NotFound(f"The profile {name[:80]!r} is not in shoal.toml.")
    return {kind: cast("tuple[str, ...]", getattr(profile, kind)) for kind in LISTS}
