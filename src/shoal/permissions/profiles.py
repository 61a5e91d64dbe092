"""Permission profiles: as written, compiled, and asked for a decision.

| what matches the action | answer |
|---|---|
| any deny pattern, of the profile, of what it extends, or of an override | deny |
| else, in the first layer that has a match: an allow pattern (of an opaque action: one that names it) | allow |
| the same: an ask pattern | ask |
| nothing | deny |

Of several actions the strictest answer counts. Views that only serve deny patterns (`Action.whole`) never allow.
Every mistake in a profile is reported when it is loaded, none later.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

import msgspec

from shoal.domain.agents import AgentSpec
from shoal.domain.errors import ConfigError, InvalidInput
from shoal.domain.order import natural
from shoal.domain.permissions import (
    COMMAND_TOOLS,
    FILE_READERS,
    FILE_WRITERS,
    STRICTNESS,
    Action,
    Asker,
    Decision,
    Ruling,
)
from shoal.domain.settings import OverrideSettings, ProfileSettings
from shoal.permissions.patterns import Automaton, PatternRefused, literal_prefixes

EVERYTHING = "(?s:.*)"
"""The one pattern that matches whatever there is and so names opaque commands too; the rule of `open`."""


def applies(override: OverrideSettings, asker: Asker, agent: str) -> bool:
    """Whether an override is meant for this asker and this agent."""
    selectors: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
        (override.agents, (agent,)),
        (override.platforms, (asker.platform,)),
        (override.channels, (asker.channel, f"{asker.platform}:{asker.channel}")),
        (override.kinds, (asker.kind,)),
        (override.users, (asker.user, *asker.identities)),
        (override.roles, asker.roles),
    )
    return all(not wanted or any(name in wanted for name in found) for wanted, found in selectors)


# Paths in actions are those of the sandbox (see docs/permissions.md): the workspace is /workspace wherever it lies. A
# path without a slash in front is taken as below the workspace; the file tools never write one.
_NO_DOTS = r"(?!(.*/)?\.\.(/|$))"
_READABLE = rf"((/(workspace|scratch|attachments|skills|docs|memory)(/|$))|(?![/~]|host:)){_NO_DOTS}.*"
_WRITABLE = rf"(/(workspace|scratch)/|(?![/~]|host:)){_NO_DOTS}(?!(.*/)?\.git(/|$)).*"

# In what is asked for, beside the built-in tools what those of extensions and host programs are usually called.
COMMANDS = f"({'|'.join(COMMAND_TOOLS)})"
READERS = f"({'|'.join(FILE_READERS)}|ls|glob|grep|search|find)"
WRITERS = f"({'|'.join(FILE_WRITERS)}|append)"
_QUIET = (
    "time|more_tools|my_settings|overview|recall|read_artifact|search_history|search_channel|process_list|process_logs"
)

_READS = (rf"tool:({'|'.join(FILE_READERS)}):{_READABLE}", rf"tool:({_QUIET}):.*")
_NETWORK = r"(?s:tool:(read_url|fetch|web_fetch|web_search|brave_search|browse)(:.*)?)"

_SELF_EDIT = r"(?s:tool:(self_edit[a-z_]*|set_[a-z_]+|(write|edit|delete)_(doc|skill)):.*)"

_LOCKED = ProfileSettings(allow=_READS)

_STANDARD = ProfileSettings(
    allow=(
        *_READS,
        rf"tool:({'|'.join(FILE_WRITERS)}):{_WRITABLE}",
        rf"tool:upload:{_READABLE}",
        "(?s:tool:(remember|note_today|remind|schedule|spawn|subagent):.*)",
        "tool:message:here",
    ),
    ask=(
        "(?s:tool:bash:.*)",
        _NETWORK,
        rf"(?s:tool:({READERS[1:-1]}|{WRITERS[1:-1]}|upload):.*)",
        _SELF_EDIT,
        "(?s:tool:(message|process)[a-z_]*:.*)",
        "(?s:tool:ask_agent:.*)",
        "(?s:tool:mcp[_.:-].*)",
    ),
)

_AT = f"tool:{COMMANDS}:"
_FLAGS = r"( -\S+( [^-\s]\S*)?)*"  # options before a subcommand, each perhaps with a value

# What changes something elsewhere, by program and verb. Reading verbs are known to `permissions.tools`; what neither
# list has is asked for.
_CHANGES = (
    "create|new|add|delete|destroy|remove|rm|update|edit|patch|put|set|unset|apply|deploy|publish|push|upload|import|restore"
    "|start|stop|restart|reboot|reset|resize|rebuild|shutdown|power(-?[a-z]+)|terminate|run|enable|disable",
    "attach|detach|assign|register|deregister|modify|scale|migrate|move|mv|copy|cp|sync|promote|rollback|invoke|send|submit|execute"
    "|exec|ssh|login|purge|revoke|grant|authorize|tag|mb|rb|init|up|actions?|configure|config|batch-write|batch-delete",
)
_CLOUDS = (
    "aws|gcloud|az|gsutil|bq|s3cmd|rclone|mc|oci|ibmcloud|aliyun|openstack|doctl|hcloud|linode-cli|linode|scw|vultr-cli|exo"
    "|upctl|civo|pulumi|eksctl|cdk|sam|railway|render|cf"
)
_GUARDED = ProfileSettings(
    deny=(
        rf"{_AT}git (-.* )?(push|send-email|request-pull)( .*)?",
        rf"{_AT}git (-.* )?(svn dcommit|remote( .*)? (add|set-url)|p4 submit)( .*)?",
        rf"{_AT}(gh|glab|hub){_FLAGS} [a-z-]+{_FLAGS} (create|new|merge|close|reopen|delete|edit|update|comment|note"
        r"|review|approve|revoke|upload|sync|fork|set|remove|run|rerun|retry|cancel|trigger|enable|disable|ready|lock|unlock"
        r"|transfer|rename|archive|unarchive|pin|unpin|develop|add|login|logout|refresh|setup-git|rebase"
        r"|install|upgrade|import|link|unlink|copy|mark-template|field-\S+|item-\S+|subscribe|unsubscribe|todo|for"
        r"|publish)( .*)?",
        rf"{_AT}hub{_FLAGS} (create|fork|pull-request|push|sync|delete|merge|api)( .*)?",
        rf"{_AT}(gh|glab) api( .*)? (-X ?|--method[ =])(POST|PUT|PATCH|DELETE)( .*)?",
        rf"(?!.* (-X ?|--method[ =])(GET|HEAD)( .*)?$)(?!.* graphql( .*)?$){_AT}(gh|glab) api( .*)? "
        r"(-[fF].*|--(field|raw-field|input|form).*)",
        rf"{_AT}(npm|pnpm|yarn|bun|cargo|gem|poetry|uv|flit|hatch|pdm|helm|lerna|dotnet|composer){_FLAGS} "
        r"(npm |nuget )?(publish|unpublish|push|deploy|deprecate|yank|owner|adduser|login|logout|signin|token|access"
        r"|team|dist-tag|profile|hook|star|install-chart|upgrade-chart)( .*)?",
        rf"{_AT}(npm|pnpm|yarn|bun|composer){_FLAGS} (run|run-script)( -\S+)* (publish|deploy|release)[a-z:-]*( .*)?",
        rf"{_AT}helm{_FLAGS} (install|upgrade|uninstall|delete|rollback|push|registry)( .*)?",
        rf"{_AT}(mvn|mvnw|gradle|gradlew|sbt)( .*)? (deploy|release|publish|upload)[A-Za-z:-]*( .*)?",
        rf"{_AT}(twine|vsce|ovsx|wrangler|vercel|netlify|flyctl|fly|heroku|firebase|serverless|sls|surge)( .*)?",
        rf"{_AT}(ansible|ansible-playbook|ansible-pull|capistrano|cap|fab|chef|knife|puppet|salt|salt-ssh)( .*)?",
        rf"{_AT}(docker|podman|buildah|nerdctl|oras|crane|regctl|skopeo){_FLAGS}"
        r"( (image|compose|manifest|buildx|registry))? (push|login|logout|copy|cp|sync|delete)( .*)?",
        rf"{_AT}(docker|podman|nerdctl|buildah)( .*)? --push( .*)?",
        rf"{_AT}(kubectl|oc){_FLAGS} (apply|create|delete|edit|patch|replace|scale|autoscale|rollout|set|label|annotate"
        r"|taint|cordon|uncordon|drain|expose|run|exec|cp|attach|debug|certificate|port-forward|proxy|login|new-app|new-project"
        r"|start-build|adm|config (set|use|unset|delete|rename)\S*)( .*)?",
        rf"{_AT}(terraform|tofu){_FLAGS} (apply|destroy|import|taint|untaint|force-unlock|login|logout|refresh|push"
        r"|state (rm|mv|push|replace-provider)|workspace (new|delete))( .*)?",
        *(rf"{_AT}({_CLOUDS})( .*)? ({changes})(-\S+)?( .*)?" for changes in _CHANGES),
        rf"{_AT}(ssh|scp|sftp|rsync|mosh|telnet|ftp|lftp|nc|ncat|netcat|socat|rsh|rcp)( .*)?",
        rf"{_AT}(mail|mailx|mutt|sendmail|msmtp|swaks|wall|write)( .*)?",
        rf"{_AT}curl( .*)? (-[a-zA-Z0-9#:]*[dFTK].*|--(data|form|json|upload|mail|config|url-query).*)",
        rf"{_AT}curl( .*)? (-[a-zA-Z0-9#:]*X|--request[ =]) ?[^GHO ].*",
        rf"{_AT}wget( .*)? --(post|body|method|config).*",
        rf"{_AT}(http|https|xh)( .*)? ((POST|PUT|PATCH|DELETE)( .*)?|\S+(=|:=|@).*)",
        rf"{_AT}(sudo|su|doas|pkexec|runuser|shutdown|reboot|halt|poweroff|init|systemctl|service)( .*)?",
        rf"{_AT}(mount|umount|mkfs\S*)( .*)?",
        _SELF_EDIT,
    ),
    # A message here has its thread's name too, which a deny rule for messages elsewhere would match: these match none.
    allow=("(?s:tool:(?!(i2c|spi|mcp)_|message).*)", "tool:message:here"),
    ask=(f"(?s:tool:{COMMANDS}:.*)", "(?s:tool:mcp_.*)"),
)

BUILTIN_PROFILES: Mapping[str, ProfileSettings] = MappingProxyType(
    {"open": ProfileSettings(allow=(EVERYTHING,)), "standard": _STANDARD, "guarded": _GUARDED, "locked": _LOCKED}
)


EXTENDS_MAX = 16
COMBINATIONS_KEPT_MAX = 256

RuleList: TypeAlias = Literal["deny", "allow", "ask", "trusted_allow"]


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

    def __init__(self, name: str, layers: Sequence[ProfileSettings | OverrideSettings]) -> None:
        """Compile the layers, the first to be asked first. Raises ConfigError naming every pattern that is refused."""
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
                    problems.append(f"permission profile {name!r}, {kind}: the pattern {pattern!r}: {refused}.")
        if problems:
            raise ConfigError(problems)
        self.name = name
        self.layers = tuple(layers)
        self.rules = tuple(rules)
        self.automaton = automaton

    def matching(self, text: str) -> list[Rule]:
        """The rules whose pattern matches the whole text, in the order they are asked. Linear in the text's length."""
        return [self.rules[number] for number in self.automaton.match(text)]

    def __repr__(self) -> str:
        return f"<Profile {self.name}>"


def layers_of(name: str, source: ProfileSettings, others: Mapping[str, ProfileSettings]) -> list[ProfileSettings]:
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


def compile_profile(name: str, source: ProfileSettings, others: Mapping[str, ProfileSettings] | None = None) -> Profile:
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
    """All profiles of an installation, with the overrides laid over them. Safe to share."""

    def __init__(
        self, sources: Mapping[str, ProfileSettings] | None = None, overrides: Sequence[OverrideSettings] = ()
    ) -> None:
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

    def replace(self, sources: Mapping[str, ProfileSettings], overrides: Sequence[OverrideSettings]) -> None:
        """Have other profiles and overrides hold from the next turns on, or none of it: raises ConfigError."""
        fresh = Profiles(sources, overrides)
        self._sources, self._overrides = fresh._sources, fresh._overrides
        self._profiles, self._combined = fresh._profiles, fresh._combined

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({*BUILTIN_PROFILES, *self._profiles}, key=natural))

    def get(self, name: str) -> Profile:
        """A profile without overrides. Raises ConfigError when there is none of this name."""
        found = _built_in(name) if name in BUILTIN_PROFILES else self._profiles.get(name)
        if found is None:
            raise ConfigError([f"there is no permission profile {name!r}; known: {', '.join(self.names)}."])
        return found

    def check(self, name: str) -> None:
        """Raises InvalidInput naming those there are when there is none of this name."""
        if name not in self.names:
            raise InvalidInput(f"There is no permission profile {name[:80]!r}. There are: {', '.join(self.names)}.")

    def effective(self, name: str, asker: Asker, agent: str) -> Profile:
        """The profile as it holds for this asker and agent: overrides that apply are asked first, the last of them
        before the others; every deny of any of them counts. Raises ConfigError when there is no such profile."""
        base = self.get(name)
        chosen = tuple(number for number, item in enumerate(self._overrides) if applies(item, asker, agent))
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

    def of_agent(self, agent: AgentSpec, asker: Asker) -> Profile:
        return self.effective(agent.profile, asker, agent.name)

    def hides(self, agent: AgentSpec, asker: Asker, tool_name: str) -> bool:
        """Whether these rules deny a tool whatever it is given."""
        return hidden(self.of_agent(agent, asker), tool_name)


def decide(profile: Profile, action: Action) -> Ruling:
    """The answer for one action. Total and deterministic; linear in the length of the action's text."""
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
    allow = min(allowing, key=lambda rule: rule.layer, default=None)  # of one layer, the one that stands first
    ask = min(asking, key=lambda rule: rule.layer, default=None)
    if allow is not None and (ask is None or allow.layer <= ask.layer):
        return Ruling(action.text, "allow", allow.shown)
    if ask is not None:
        return Ruling(action.text, "ask", ask.shown)
    return Ruling(action.text, "deny")


def decide_all(profile: Profile, actions: Sequence[Action]) -> tuple[Decision, tuple[Ruling, ...]]:
    """The strictest answer over all actions, and the ruling of each; a view for deny patterns is listed when denied.

    No action at all, or nothing but such views, is denied.
    """
    decided = [(action.whole, decide(profile, action)) for action in actions]
    rulings = tuple(one for whole, one in decided if not whole or (one.decision == "deny" and one.rule))
    if all(whole for whole, _ in decided):
        return "deny", rulings
    return max(rulings, key=lambda ruling: STRICTNESS[ruling.decision]).decision, rulings


@lru_cache(maxsize=4096)
def hidden(profile: Profile, tool_name: str) -> bool:
    """Whether every call of the tool would be denied, whatever its arguments; such a tool is not shown to the model.

    True when a deny pattern matches everything of the tool, or no allow or ask pattern can match anything of it.
    """
    alive, matching_all = profile.automaton.after(f"tool:{tool_name}:")
    if any(profile.rules[number].list == "deny" for number in matching_all):
        return True
    return not any(profile.rules[number].list in ("allow", "ask") for number in alive)


@lru_cache(maxsize=256)
def hidden_by(profiles: tuple[Profile, ...]) -> Callable[[str], bool]:
    """Whether one of these profiles wholly denies a tool; the same object for the same profiles."""
    return lambda name: any(hidden(profile, name) for profile in profiles)
