"""Turns the lists of a profile into something that decides; every mistake is reported when it is loaded, none later."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, TypeAlias

import msgspec

from shoal.domain.errors import ConfigError
from shoal.domain.permissions import Asker
from shoal.permissions.automaton import Automaton
from shoal.permissions.pattern import PatternRefused, Program, literal_prefixes
from shoal.permissions.profiles import BUILTIN_PROFILES, EVERYTHING, Override, ProfileSource

__all__ = [
    "BUILTIN_PROFILES",
    "Override",
    "Profile",
    "ProfileSource",
    "Profiles",
    "Rule",
    "compile_profile",
]

EXTENDS_MAX = 16
COMBINATIONS_KEPT_MAX = 256

RuleList: TypeAlias = Literal["deny", "allow", "ask", "trusted_allow"]
_LISTS: tuple[RuleList, ...] = ("deny", "allow", "ask", "trusted_allow")


class Rule(msgspec.Struct, frozen=True):
    """One pattern. `layer` counts from what is asked first."""

    list: RuleList
    pattern: str
    layer: int

    @property
    def shown(self) -> str:
        """The list and the pattern, as answers and the audit log name it."""
        return f"{self.list} {self.pattern}"

    def names(self, text: str, naming: str) -> bool:
        """Whether the rule, which matches `text`, is about exactly `naming`, the text's beginning: in each of its
        alternatives that can match the text, that much is spelled out."""
        if self.pattern == EVERYTHING:
            return True
        fitting = [prefix for prefix in literal_prefixes(self.pattern) if text.startswith(prefix)]
        return bool(fitting) and all(prefix.startswith(naming) for prefix in fitting)


class Profile:
    """Compiled rules. Immutable in what it answers; two profiles are equal only when they are the same object."""

    __slots__ = ("automaton", "layers", "name", "rules")

    def __init__(self, name: str, layers: Sequence[ProfileSource | Override]) -> None:
        """Compile the layers, the first to be asked first. Raises ConfigError naming every pattern that is refused."""
        program = Program()
        rules: list[Rule] = []
        problems: list[str] = []
        for kind, pattern, number in _listed(layers):
            try:
                program.add(pattern, dotall=kind == "deny")
                rules.append(Rule(kind, pattern, number))
            except PatternRefused as refused:
                problems.append(f"permission profile {name!r}, {kind}: the pattern {pattern!r}: {refused}.")
        if problems:
            raise ConfigError(problems)
        self.name = name
        self.layers = tuple(layers)
        self.rules = tuple(rules)
        self.automaton = Automaton(program)

    def matching(self, text: str) -> list[Rule]:
        """The rules whose pattern matches the whole text, in the order they are asked. Linear in the text's length."""
        return [self.rules[number] for number in self.automaton.match(text)]

    def __repr__(self) -> str:
        return f"<Profile {self.name}>"


def _listed(layers: Sequence[ProfileSource | Override]) -> Iterator[tuple[RuleList, str, int]]:
    """Every pattern with its list and the number of its layer."""
    for number, layer in enumerate(layers):
        for kind in _LISTS:
            for pattern in _patterns(layer, kind):
                yield kind, pattern, number


def _patterns(layer: ProfileSource | Override, kind: RuleList) -> tuple[str, ...]:
    match kind:
        case "deny":
            return layer.deny
        case "allow":
            return layer.allow
        case "ask":
            return layer.ask
        case "trusted_allow":
            return layer.trusted_allow


def layers_of(name: str, source: ProfileSource, others: Mapping[str, ProfileSource]) -> list[ProfileSource]:
    """The profile and what it extends, nearest first. Raises ConfigError."""
    layers = [source]
    seen = [name]
    while layers[-1].extends:
        parent = layers[-1].extends
        if parent in seen or len(seen) >= EXTENDS_MAX:
            raise ConfigError([f"permission profile {name!r}: it extends itself: {' → '.join([*seen, parent])}."])
        found = BUILTIN_PROFILES.get(parent) or others.get(parent)
        if found is None:
            known = ", ".join(sorted({*BUILTIN_PROFILES, *others}))
            raise ConfigError(
                [f"permission profile {seen[-1]!r} extends {parent!r}, which does not exist; known: {known}."]
            )
        seen.append(parent)
        layers.append(found)
    return layers


def compile_profile(name: str, source: ProfileSource, others: Mapping[str, ProfileSource] | None = None) -> Profile:
    """Compile a profile; `others` are the profiles that `extends` may name beside the built-in ones.

    Raises ConfigError with a sentence for each pattern that is no regular expression or cannot be matched in linear
    time, and for `extends` that leads nowhere or in a circle.
    """
    return Profile(name, layers_of(name, source, others or {}))


@cache
def _built_in(name: str) -> Profile:
    """A built-in profile: compiled when it is first asked for, once a process."""
    return compile_profile(name, BUILTIN_PROFILES[name])


class Profiles:
    """All profiles of an installation, with the overrides laid over them. Compiled once; safe to share."""

    def __init__(self, sources: Mapping[str, ProfileSource] | None = None, overrides: Sequence[Override] = ()) -> None:
        """Compile all but the built-in ones, which cannot be replaced. Raises ConfigError with all problems."""
        self._sources = dict(sources or {})
        self._overrides = tuple(overrides)
        problems: list[str] = []
        self._profiles: dict[str, Profile] = {}
        for name, source in self._sources.items():
            if name in BUILTIN_PROFILES:
                said = "is built in; give yours another name and set extends ="
                problems.append(f"permission profile {name!r} {said} {name!r}.")
                continue
            try:
                self._profiles[name] = compile_profile(name, source, self._sources)
            except ConfigError as error:
                problems += error.problems
        for number, override in enumerate(self._overrides):
            try:
                Profile(f"override {number + 1}", [override])
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        self._combined: dict[tuple[str, tuple[int, ...]], Profile] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names that can be used, sorted."""
        return tuple(sorted({*BUILTIN_PROFILES, *self._profiles}))

    def get(self, name: str) -> Profile:
        """A profile without overrides. Raises ConfigError when there is none of this name."""
        found = _built_in(name) if name in BUILTIN_PROFILES else self._profiles.get(name)
        if found is None:
            raise ConfigError([f"there is no permission profile {name!r}; known: {', '.join(self.names)}."])
        return found

    def effective(self, name: str, asker: Asker, agent: str) -> Profile:
        """The profile as it holds for this asker and agent: overrides that apply are asked first, the last of them
        before the others; every deny of any of them counts. Raises ConfigError when there is no such profile."""
        base = self.get(name)
        chosen = tuple(number for number, item in enumerate(self._overrides) if item.applies(asker, agent))
        if not chosen:
            return base
        found = self._combined.get((name, chosen))
        if found is None:
            layers = [self._overrides[number] for number in reversed(chosen)]
            found = Profile(name, [*layers, *base.layers])
            while len(self._combined) >= COMBINATIONS_KEPT_MAX:
                self._combined.pop(next(iter(self._combined)))
            self._combined[(name, chosen)] = found
        return found
