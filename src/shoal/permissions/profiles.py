"""Parse and compile permission profiles, and decide about actions.

| match of the action | decision |
|---|---|
| a deny pattern of the profile, of a profile that it extends, or of an override | deny |
| otherwise, in the first layer with a match: an allow pattern (an opaque action must be named) | allow |
| otherwise, in the first layer with a match: an ask pattern | ask |
| no match, but a layer has `effects` and the tool is not reserved for the owner's rules | by the effect |
| no match otherwise | deny |

`permissions.effects` defines the effects. For several actions, the strictest decision counts. Views that exist only
for deny patterns (`Action.whole`) never allow anything. All mistakes in a profile are reported when it is loaded.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import get_args

import msgspec

from shoal.kernel.agents import AgentSpec
from shoal.kernel.errors import ConfigError, InvalidInput
from shoal.kernel.permissions import STRICTNESS, Action, Asker, Decision, Ruling
from shoal.kernel.settings import OverrideSettings, ProfileSettings
from shoal.kernel.traits import NO_TOOLS, TraitsByName
from shoal.permissions.built_in import BUILT_IN, EVERYTHING, MCP_TOOLS, RuleList, built_in
from shoal.permissions.effects import STRICTEST, Situation, answer_to
from shoal.permissions.patterns import Automaton, PatternRefused, literal_prefixes
from shoal.text.order import natural


def applies(override: OverrideSettings, asker: Asker, agent: str) -> bool:
    selectors: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
        (override.agents, (agent,)),
        (override.platforms, (asker.platform,)),
        (override.channels, (asker.channel, f"{asker.platform}:{asker.channel}")),
        (override.kinds, (asker.kind,)),
        (override.users, (asker.user, *asker.identities)),
        (override.roles, asker.roles),
    )
    return all(not wanted or any(name in wanted for name in names) for wanted, names in selectors)


EXTENDS_MAX = 16
COMBINATIONS_KEPT_MAX = 256


class Rule(msgspec.Struct, frozen=True):
    """One pattern. Layer 0 is checked first."""

    list: RuleList
    pattern: str
    layer: int

    @property
    def shown(self) -> str:
        return f"{self.list} {self.pattern}"

    @property
    def narrow(self) -> bool:
        """Whether every alternative of the pattern literally begins with the name of a tool and a part of the
        detail.
        """
        return all(re.match(r"tool:[^:]+:.", prefix) for prefix in literal_prefixes(self.pattern) or ("",))

    def names(self, text: str, naming: str) -> bool:
        """Return True if the rule, which matches `text`, literally contains `naming`, the beginning of `text`.

        Every alternative that can match the text must contain it.
        """
        if self.pattern == EVERYTHING:
            return True
        fitting = [prefix for prefix in literal_prefixes(self.pattern) if text.startswith(prefix)]
        return bool(fitting) and all(prefix.startswith(naming) for prefix in fitting)


class Profile:
    """Compiled rules, which never change. Two profiles are equal only if they are the same object."""

    def __init__(
        self, name: str, layers: Sequence[ProfileSettings | OverrideSettings], traits: TraitsByName = NO_TOOLS
    ) -> None:
        """Compile the layers, in the order in which they are checked. `traits` are the traits of the tools.

        Raises ConfigError, whose problems name every rejected pattern.
        """
        automaton = Automaton()
        rules: list[Rule] = []
        problems: list[str] = []
        for number, layer in enumerate(layers):
            lists = zip(get_args(RuleList), (layer.deny, layer.allow, layer.ask, layer.trusted_allow), strict=True)
            for kind, pattern in ((kind, pattern) for kind, patterns in lists for pattern in patterns):
                try:
                    automaton.add(pattern, dotall=kind == "deny")
                    rules.append(Rule(kind, pattern, number))
                except PatternRefused as refused:
                    problems.append(
                        f"permission profile {name!r}, {kind}: the pattern {pattern!r} was rejected: {refused}."
                    )
        if problems:
            raise ConfigError(problems)
        self.name = name
        self.traits = traits
        self.layers = tuple(layers)
        self.rules = tuple(rules)
        self.automaton = automaton
        came_with_shoal = {built_in(profile, traits) for profile in BUILT_IN}
        self.own_layers = frozenset(number for number, layer in enumerate(layers) if layer not in came_with_shoal)
        self.effects = any(isinstance(layer, ProfileSettings) and layer.effects for layer in layers)
        self.stages = any(isinstance(layer, ProfileSettings) and layer.stages for layer in layers)

    def matching(self, text: str) -> list[Rule]:
        """Return the rules whose pattern matches the complete text, in the order in which they are checked.

        Runs in time linear in the length of the text.
        """
        return [self.rules[number] for number in self.automaton.match(text)]

    def goes_by_effect(self, tool: str) -> bool:
        return self.effects and self.traits.of(tool).treatments.standard.otherwise != "owner"

    def __repr__(self) -> str:
        return f"<Profile {self.name}>"


def layers_of(
    name: str, source: ProfileSettings, others: Mapping[str, ProfileSettings], traits: TraitsByName = NO_TOOLS
) -> list[ProfileSettings]:
    layers = [source]
    seen = [name]
    while layers[-1].extends:
        parent = layers[-1].extends
        if parent in seen or len(seen) >= EXTENDS_MAX:
            raise ConfigError([f"permission profile {name!r} extends itself: {' → '.join([*seen, parent])}."])
        profile = built_in(parent, traits) if parent in BUILT_IN else others.get(parent)
        if profile is None:
            known = ", ".join(sorted({*BUILT_IN, *others}))
            raise ConfigError(
                [f"permission profile {seen[-1]!r} extends {parent!r}, which does not exist. Known profiles: {known}."]
            )
        seen.append(parent)
        layers.append(profile)
    return layers


def compile_profile(
    name: str,
    source: ProfileSettings,
    others: Mapping[str, ProfileSettings] | None = None,
    traits: TraitsByName = NO_TOOLS,
) -> Profile:
    """Compile a profile. `others` are the profiles that `extends` may name in addition to the built-in ones.

    Raises ConfigError with one sentence for each pattern that is invalid or cannot be matched in linear time. Also
    raises ConfigError if `extends` names an unknown profile or forms a cycle.
    """
    return Profile(name, layers_of(name, source, others or {}, traits), traits)


@lru_cache(maxsize=64)
def _built_in(name: str, traits: TraitsByName, version: int) -> Profile:
    return Profile(name, [built_in(name, traits)], traits)


class Profiles:
    """All profiles of an installation, with their overrides. May be shared between threads.

    Profiles are compiled on first use, and again after the set of tools has changed.
    """

    def __init__(
        self,
        traits: TraitsByName,
        sources: Mapping[str, ProfileSettings] | None = None,
        overrides: Sequence[OverrideSettings] = (),
    ) -> None:
        """Check all custom profiles, which cannot replace built-in ones. Raises ConfigError with all problems."""
        self._traits = traits
        self._sources = dict(sources or {})
        self._overrides = tuple(overrides)
        problems: list[str] = []
        for name, source in self._sources.items():
            if name in BUILT_IN:
                problem = "is built in. Choose another name and set extends ="
                problems.append(f"permission profile {name!r} {problem} {name!r}.")
                continue
            try:
                layers_of(name, source, self._sources)
                Profile(name, [source])
            except ConfigError as error:
                problems += error.problems
        for number, override in enumerate(self._overrides):
            try:
                Profile(f"override {number + 1}", [override])
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        self._version = traits.version
        self._profiles: dict[str, Profile] = {}
        self._combined: dict[tuple[str, tuple[int, ...]], Profile] = {}

    def replace(self, sources: Mapping[str, ProfileSettings], overrides: Sequence[OverrideSettings]) -> None:
        """Replace all custom profiles and overrides, from the next turn on.

        If any of them is invalid, raises ConfigError and changes nothing.
        """
        fresh = Profiles(self._traits, sources, overrides)
        self._sources, self._overrides = fresh._sources, fresh._overrides
        self._profiles, self._combined = fresh._profiles, fresh._combined

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({*BUILT_IN, *self._sources}, key=natural))

    def get(self, name: str) -> Profile:
        """Return a profile without overrides. Raises ConfigError for an unknown name."""
        if self._version != self._traits.version:
            self._version = self._traits.version
            self._profiles.clear()
            self._combined.clear()
        if name in BUILT_IN:
            return _built_in(name, self._traits, self._version)
        if name not in self._sources:
            raise ConfigError([f"no permission profile is named {name!r}. Known profiles: {', '.join(self.names)}."])
        if name not in self._profiles:
            self._profiles[name] = compile_profile(name, self._sources[name], self._sources, self._traits)
        return self._profiles[name]

    def check(self, name: str) -> None:
        """Raise InvalidInput with the known names if no profile has this name."""
        if name not in self.names:
            raise InvalidInput(f"No permission profile is named {name[:80]!r}. Profiles: {', '.join(self.names)}.")

    def effective(self, name: str, asker: Asker, agent: str) -> Profile:
        """Return the profile with the overrides for this asker and agent. Raises ConfigError if the profile does not
        exist.

        The last matching override is checked first, and every deny pattern counts.
        """
        base = self.get(name)
        chosen = tuple(number for number, item in enumerate(self._overrides) if applies(item, asker, agent))
        if not chosen:
            return base
        profile = self._combined.get((name, chosen))
        if profile is None:
            layers = [self._overrides[number] for number in reversed(chosen)]
            profile = Profile(name, [*layers, *base.layers], self._traits)
            while len(self._combined) >= COMBINATIONS_KEPT_MAX:
                self._combined.pop(next(iter(self._combined)))
            self._combined[(name, chosen)] = profile
        return profile

    def of_agent(self, agent: AgentSpec, asker: Asker) -> Profile:
        return self.effective(agent.profile, asker, agent.name)

    def hides(self, agent: AgentSpec, asker: Asker, tool_name: str) -> bool:
        return hidden(self.of_agent(agent, asker), tool_name)


def decide(profile: Profile, action: Action, situation: Situation = STRICTEST) -> Ruling:
    """Return the decision about one action. Deterministic, and linear in the length of the action's text."""
    allowing: list[Rule] = []
    asking: list[Rule] = []
    for text in (action.text, *action.also):
        for rule in profile.matching(text):
            if rule.list == "deny":
                return Ruling(action.text, "deny", rule.shown)
            if rule.list == "ask":
                asking.append(rule)
            if rule.list == "allow" and (not action.opaque or rule.names(text, action.naming or text)):
                allowing.append(rule)
    allow = min(allowing, key=lambda rule: rule.layer, default=None)
    ask = min(asking, key=lambda rule: rule.layer, default=None)
    if allow is not None and (ask is None or allow.layer <= ask.layer):
        return Ruling(action.text, "allow", allow.shown)
    by_effect = ask is not None and ask.pattern == MCP_TOOLS and ask.layer not in profile.own_layers
    if ask is not None and not by_effect:
        return Ruling(action.text, "ask", ask.shown)
    if not action.whole and (by_effect or profile.goes_by_effect(action.tool)):
        effect, answer = answer_to(action, profile.traits, situation)
        decision: Decision = "ask" if answer == "ask" else "allow"
        return Ruling(action.text, decision, f"{decision} effect {effect}")
    return Ruling(action.text, "deny")


def decide_all(
    profile: Profile, actions: Sequence[Action], situation: Situation = STRICTEST
) -> tuple[Decision, tuple[Ruling, ...]]:
    """Return the strictest decision about the actions, and the ruling on each of them.

    A view for deny patterns is included only if it is denied. If there are only such views, the decision is deny.
    """
    decided = [(action.whole, decide(profile, action, situation)) for action in actions]
    rulings = tuple(ruling for whole, ruling in decided if not whole or (ruling.decision == "deny" and ruling.rule))
    if all(whole for whole, _ in decided):
        return "deny", rulings
    return max(rulings, key=lambda ruling: STRICTNESS[ruling.decision]).decision, rulings


@lru_cache(maxsize=4096)
def hidden(profile: Profile, tool_name: str) -> bool:
    """Return True if every call to the tool would be denied. Such a tool is not shown to the model.

    This is the case if a deny pattern matches all its calls, or if no allow or ask pattern can match and the effect
    does not decide.
    """
    alive, matching_all = profile.automaton.after(f"tool:{tool_name}:")
    if any(profile.rules[number].list == "deny" for number in matching_all):
        return True
    return not profile.goes_by_effect(tool_name) and not any(
        profile.rules[number].list in ("allow", "ask") for number in alive
    )


@lru_cache(maxsize=256)
def hidden_by(profiles: tuple[Profile, ...]) -> Callable[[str], bool]:
    return lambda name: any(hidden(profile, name) for profile in profiles)
