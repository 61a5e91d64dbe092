"""Calls about access: the caller, tokens, paired people and permission rules."""

from datetime import datetime, timedelta
from typing import Annotated, Literal

import anyio.to_thread
import msgspec

from shoal.agents.lifecycle import AgentLifecycle
from shoal.agents.registry import AgentRegistry
from shoal.connections import Connections
from shoal.kernel.clock import Clock
from shoal.kernel.errors import ConfigError, Conflict, InvalidInput, NotFound
from shoal.kernel.home import Home
from shoal.kernel.ids import encode_part
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.permissions import AccessToken, Decision, Ruling, TokenScope
from shoal.kernel.regular_files import read_regular_text
from shoal.kernel.settings import OverrideSettings, ProfileSettings
from shoal.permissions.built_in import BUILT_IN, RuleList, built_in
from shoal.permissions.hindsight import ChangedDecision, SuggestedRule, changed_decisions, suggestions
from shoal.permissions.profiles import Profiles, compile_profile, decide_all
from shoal.permissions.rule_words import WORKSPACE, RuleSubject, pattern_of, subject_of, words_of
from shoal.setup.live import LiveSetup
from shoal.setup.rules import OwnRule, own_rules, with_override, with_profile, with_rule
from shoal.store.store import Store
from shoal.surfaces.http.auth import Gate
from shoal.surfaces.http.endpoints import ADMINS, EVERYONE, READERS, Removed, Routes, Text64, Text200, view
from shoal.surfaces.http.routes_threads import check_agent
from shoal.text.order import natural
from shoal.text.toml_edit import without_key
from shoal.threads.access_gate import Pairing
from shoal.threads.access_tokens import AccessTokens, NewToken
from shoal.threads.principals import Principal
from shoal.threads.timezones import TimeZones
from shoal.tools.executor import Executor
from shoal.tools.registry import Registry

routes = Routes()

PREFERENCES = "preferences"


class Preferences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person's preferences on the page."""

    theme: Literal["system", "light", "dark"] = "system"
    grouping: Literal["day", "agent", "platform"] = "day"


class WhoView(msgspec.Struct, frozen=True):
    """The caller, and the permissions of their token.

    token: name of the token, or empty for the home's token.
    author: id of the caller as the author of messages.
    name: name of the caller as the author of messages.
    agent: the only agent that the token can use, or empty for all agents.
    thread_prefix: prefix of the ids of threads that the caller opens on the page.
    answers_as: default agent of these threads, if known.
    answers_with: default model of these threads, if known.
    timezone: time zone of the caller.
    home_timezone: time zone of the installation. Days of usage and budget limits start at midnight in it.
    ticket: value that the page appends as `?ticket=` to the URLs of files that the browser loads. Empty for a call
    with a token.
    """

    token: str
    scope: TokenScope
    person: str
    author: str
    name: str
    agent: str
    thread_prefix: str
    answers_as: str
    answers_with: str
    preferences: Preferences
    timezone: str
    home_timezone: str
    ticket: str


class TimeZoneChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of an IANA time zone. An empty name removes the choice."""

    timezone: Annotated[str, msgspec.Meta(max_length=64)]


class TimeZoneView(msgspec.Struct, frozen=True):
    """The caller's time zone."""

    timezone: str


class TokenView(msgspec.Struct, frozen=True):
    """An access token.

    person: PLATFORM:USER.
    agent: the only agent that the token can use, or empty for all agents.
    used_on: day (UTC) of the last use, or empty.
    """

    name: str
    scope: TokenScope
    person: str
    agent: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    used_on: str


class NewTokenView(msgspec.Struct, frozen=True):
    """The new token. `secret` is the bearer token and is shown only once."""

    secret: str
    token: TokenView


class TokenRevoked(msgspec.Struct, frozen=True):
    """The token is no longer valid."""

    revoked: bool


class PairedView(msgspec.Struct, frozen=True):
    """A person who was admitted with a pairing code. `at` is the time of pairing, or null if unknown."""

    platform: str
    user: str
    name: str
    by: str
    at: datetime | None


class WaitingView(msgspec.Struct, frozen=True):
    """A person who waits for access. Their pairing code expires at `expires_at`."""

    platform: str
    user: str
    name: str
    expires_at: datetime


class AccessView(msgspec.Struct, frozen=True):
    """People with access by pairing code and people who wait for access, on all platforms. People in the
    configuration are not listed.
    """

    paired: list[PairedView]
    waiting: list[WaitingView]


class PairRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pairing code that a person received."""

    code: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]


class PairAnswer(msgspec.Struct, frozen=True):
    """The person who now has access."""

    platform: str
    user: str


@routes("GET /api/me", EVERYONE, narrows=True)
async def who(
    store: Store, config: LiveConfig, agents: AgentRegistry, timezones: TimeZones, gate: Gate, by: Principal
) -> WhoView:
    """Return the caller and the permissions of their token."""
    token, name = by.token, by.author.name or "owner"
    prefix = f"web:{encode_part(by.channel or 'lobby')}:"
    stored = await store.settings.get(PREFERENCES, by.person)
    preferences = msgspec.json.decode(stored, type=Preferences) if stored else Preferences()
    answers = None if token.agent else agents.default()
    agent, model = (answers.name, answers.model) if answers else (token.agent, "")
    return WhoView(
        token.name,
        token.scope,
        by.person,
        by.author.id,
        name,
        token.agent,
        prefix,
        agent,
        model,
        preferences,
        await zone_of(config, timezones, by),
        config.current.zone,
        gate.make_ticket(by) if by.by_cookie else "",
    )


@routes("PUT /api/me/timezone", EVERYONE, narrows=True)
async def set_timezone(config: LiveConfig, timezones: TimeZones, by: Principal, body: TimeZoneChoice) -> TimeZoneView:
    """Set the caller's time zone, for reminders and the times that agents mention."""
    await timezones.choose(by.asker, body.timezone)
    return TimeZoneView(await zone_of(config, timezones, by))


@routes("PUT /api/me/preferences", EVERYONE, narrows=True)
async def set_preferences(store: Store, by: Principal, body: Preferences) -> Preferences:
    """Store the caller's preferences. They apply in every browser in which the caller signs in."""
    await store.settings.put(PREFERENCES, by.person, msgspec.json.encode(body).decode())
    return body


async def zone_of(config: LiveConfig, timezones: TimeZones, by: Principal) -> str:
    return await timezones.chosen(by.asker) or config.current.zone


# ---- tokens and paired people ----


@routes("GET /api/tokens", ADMINS, answer=list[TokenView])
async def tokens(tokens: AccessTokens) -> list[AccessToken]:
    """List the access tokens."""
    return sorted(await tokens.all(), key=lambda token: natural(token.name))


@routes("POST /api/tokens", ADMINS, status=201)
async def create_token(tokens: AccessTokens, by: Principal, body: NewToken) -> NewTokenView:
    """Create an access token. 409 if the name is taken."""
    token, secret = await tokens.create(body, by.person, by.token.name)
    return NewTokenView(secret, view(TokenView, token))


@routes("DELETE /api/tokens/{name}", ADMINS)
async def revoke_token(tokens: AccessTokens, by: Principal, name: str) -> TokenRevoked:
    """Revoke an access token. Its open streams end, and its next call fails."""
    await tokens.revoke(name, by.person, by.token.name)
    return TokenRevoked(True)


@routes("GET /api/access", READERS)
async def access(connections: Connections, pairing: Pairing) -> AccessView:
    """List the people who were paired, and the people who wait with a pairing code. Codes are not included."""
    shown = AccessView([], [])
    for platform in sorted(connections.configured):
        roster = await pairing.roster(platform)
        shown.paired.extend(view(PairedView, person, platform=platform) for person in roster.paired)
        shown.waiting.extend(view(WaitingView, person, platform=platform) for person in roster.waiting)
    return shown


@routes("POST /api/access/pair", ADMINS)
async def pair(connections: Connections, pairing: Pairing, by: Principal, body: PairRequest) -> PairAnswer:
    """Pair the person who received this code. 404 if the code is unknown or has expired."""
    return PairAnswer(*await pairing.confirm(body.code, sorted(connections.configured), by.person))


@routes("DELETE /api/access/{platform}/{user:path}", ADMINS)
async def unpair(pairing: Pairing, by: Principal, platform: str, user: str) -> Removed:
    """Remove a paired person's access, and end their running and queued work."""
    await pairing.remove(platform, user, by.person)
    return Removed(True)


# ---- permission rules ----

CHANGED_MAX = 500
APPROVALS_MAX = 10_000
Hours = Annotated[int, msgspec.Meta(ge=1, le=87_600)]


class Hindsight(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to evaluate past actions against the rules of a profile, or against `rules`.

    profile: name of the profile. With `rules`, the name that the response uses for them.
    hours: length of the period to evaluate, up to now.
    agent: evaluate only the actions of this agent.
    """

    profile: Text200 = ""
    rules: ProfileSettings | None = None
    hours: Hours = 720
    agent: Text200 = ""


class HindsightView(msgspec.Struct, frozen=True):
    """The result of evaluating past actions against other rules.

    checked: number of checks.
    actions: number of distinct actions.
    changed: actions that these rules would decide differently, most frequent first.
    """

    checked: int
    actions: int
    changed: list[ChangedDecision]


class AcceptedRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A suggested rule to accept. `hours` is the period for which it was suggested."""

    agent: Text200
    allow: tuple[Annotated[str, msgspec.Meta(max_length=1_000)], ...]
    hours: Hours = 720


class RuleView(msgspec.Struct, frozen=True):
    """A rule of a profile.

    list: the list that contains the rule.
    words: description of the rule, or empty if only the pattern describes it.
    """

    list: str
    pattern: str
    words: str


class OwnRuleView(OwnRule, frozen=True, kw_only=True):
    """One of the owner's rules. `subject` is null if only the pattern describes the rule."""

    id: str
    words: str
    subject: RuleSubject | None


class NewRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new rule, with a `subject` or a `pattern`. It applies to all agents, to some `agents`, or to a custom
    `profile`.
    """

    list: RuleList
    subject: RuleSubject | None = None
    pattern: Annotated[str, msgspec.Meta(max_length=1_000)] = ""
    agents: tuple[Text64, ...] = ()
    profile: Text200 = ""


class NewProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new profile that starts as a copy of the profile `copies`."""

    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    copies: Text200


class ProfileView(msgspec.Struct, frozen=True):
    """A profile with its rules, including inherited ones, and the agents that use it."""

    name: str
    agents: list[str]
    rules: list[RuleView]
    built_in: bool


class WouldRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `shell` command or an `action` to check against the rules of a `profile` or an `agent`."""

    shell: Annotated[str, msgspec.Meta(max_length=20_000)] = ""
    action: Annotated[str, msgspec.Meta(max_length=20_000)] = ""
    profile: Text200 = ""
    agent: Text64 = ""


class WouldRunView(msgspec.Struct, frozen=True):
    """The decision on a command or action: the strictest decision on any part, and the decision on each part."""

    profile: str
    decision: Decision
    parts: tuple[Ruling, ...]


@routes("POST /api/permissions/profiles", ADMINS, status=201, owner_only=True)
async def copy_profile(
    config: LiveConfig,
    known_profiles: Profiles,
    tools: Registry,
    lifecycle: AgentLifecycle,
    setup: LiveSetup,
    by: Principal,
    body: NewProfile,
) -> ProfileView:
    """Create a custom profile as a copy of another. 409 if the name is taken."""
    own = config.current.permissions.profiles
    known_profiles.check(body.copies)
    if body.name in known_profiles.names:
        raise Conflict(f"A profile named {body.name} already exists. Choose another name.")
    source = built_in(body.copies, tools.traits) if body.copies in BUILT_IN else own[body.copies]
    what = f"create profile {body.name} as a copy of {body.copies}"
    await setup.change_rules(what, lambda text: with_profile(text, body.name, source), by.person)
    return next(profile for profile in await profiles(known_profiles, tools, lifecycle) if profile.name == body.name)


@routes("DELETE /api/permissions/profiles/{name}", ADMINS, owner_only=True)
async def remove_profile(
    known_profiles: Profiles, tools: Registry, lifecycle: AgentLifecycle, setup: LiveSetup, by: Principal, name: str
) -> Removed:
    """Remove a custom profile. 409 if an agent uses it."""
    match = next(
        (
            profile
            for profile in await profiles(known_profiles, tools, lifecycle)
            if profile.name == name and not profile.built_in
        ),
        None,
    )
    if match is None:
        raise NotFound(f"No custom profile named {name[:80]!r}.")
    if match.agents:
        raise Conflict(
            f"The profile {name} is in use by {', '.join(match.agents)}. First choose another profile with `shoal "
            "agents config AGENT profile NAME`."
        )
    table = ("permissions", "profiles", name)
    await setup.change_rules(f"remove profile {name}", lambda text: without_key(text, table), by.person)
    return Removed(True)


@routes("GET /api/permissions/profiles", READERS)
async def profiles(known_profiles: Profiles, tools: Registry, lifecycle: AgentLifecycle) -> list[ProfileView]:
    """List the permission profiles."""
    having: dict[str, list[str]] = {}
    for card in await lifecycle.cards():
        if card.spec is not None:
            having.setdefault(card.spec.profile, []).append(card.name)
    return [
        ProfileView(
            name,
            having.get(name, []),
            [
                RuleView(rule.list, rule.pattern, words_of(rule.pattern, tools.traits))
                for rule in known_profiles.get(name).rules
            ],
            name in BUILT_IN,
        )
        for name in known_profiles.names
    ]


@routes("GET /api/permissions/rules", READERS)
async def rules(config: LiveConfig, tools: Registry) -> list[OwnRuleView]:
    """List the rules that can be changed. The rules for certain agents, channels and people come first, in the
    order of evaluation. The rules of custom profiles follow.
    """
    return [_shown(tools, rule) for rule in own_rules(config.current.permissions)]


@routes("POST /api/permissions/rules", ADMINS, status=201, owner_only=True)
async def add_rule(
    agents: AgentRegistry, profiles: Profiles, tools: Registry, setup: LiveSetup, by: Principal, body: NewRule
) -> OwnRuleView:
    """Add a rule. It takes effect on the next turn. 409 for a built-in profile."""
    rule = _wanted(agents, profiles, tools, body)
    await setup.change_rules(f"add rule {_said(rule)}", lambda text: with_rule(text, None, rule), by.person)
    return _shown(tools, rule)


@routes("PUT /api/permissions/rules/{id}", ADMINS, owner_only=True)
async def change_rule(
    config: LiveConfig,
    agents: AgentRegistry,
    profiles: Profiles,
    tools: Registry,
    setup: LiveSetup,
    by: Principal,
    id: str,
    body: NewRule,
) -> OwnRuleView:
    """Replace a rule. Without `agents` and `profile`, the new rule applies to the same agents or profile."""
    was, rule = _known(config, id), _wanted(agents, profiles, tools, body)
    if not body.agents and not body.profile:
        rule = msgspec.structs.replace(was, list=rule.list, pattern=rule.pattern)
    what = f"change rule {_said(was)} to {_said(rule)}"
    await setup.change_rules(what, lambda text: with_rule(text, was, rule), by.person)
    return _shown(tools, rule)


@routes("DELETE /api/permissions/rules/{id}", ADMINS, owner_only=True)
async def remove_rule(config: LiveConfig, setup: LiveSetup, by: Principal, id: str) -> Removed:
    """Remove a rule."""
    was = _known(config, id)
    await setup.change_rules(f"remove rule {_said(was)}", lambda text: with_rule(text, was, None), by.person)
    return Removed(True)


def _shown(tools: Registry, rule: OwnRule) -> OwnRuleView:
    traits = tools.traits
    words, subject = words_of(rule.pattern, traits), subject_of(rule.pattern, traits)
    return view(OwnRuleView, rule, id=rule.key, words=words, subject=subject)


def _known(config: LiveConfig, id: str) -> OwnRule:
    own_rule = next((rule for rule in own_rules(config.current.permissions) if rule.key == id), None)
    if own_rule is None:
        raise NotFound("No rule has this ID. Run `shoal permissions rules` to list the rules.")
    return own_rule


def _wanted(agents: AgentRegistry, profiles: Profiles, tools: Registry, body: NewRule) -> OwnRule:
    if (body.subject is None) == (not body.pattern):
        raise InvalidInput("Specify either a `subject` or a `pattern`.")
    if body.profile in BUILT_IN:
        raise Conflict(
            f"The profile {body.profile} is built in and cannot be changed. Add the rule to agents instead, "
            f"or copy the profile: `shoal permissions copy {body.profile} NAME`."
        )
    if body.profile and body.agents:
        raise InvalidInput("Specify either agents or a profile, not both.")
    if body.profile:
        profiles.check(body.profile)
    for name in body.agents:
        if not agents.exists(name):
            raise NotFound(f"No agent named {name[:80]!r}.")
    if body.subject is not None and body.subject.what == "tool" and body.subject.text not in tools.names():
        raise InvalidInput(f"No tool named {body.subject.text[:80]!r}.")
    pattern = pattern_of(body.subject, tools.traits) if body.subject is not None else body.pattern
    return OwnRule(body.list, pattern, body.profile, body.agents)


def _said(rule: OwnRule) -> str:
    whose = f"profile {rule.profile}" if rule.profile else ", ".join(rule.agents) or "certain people and channels"
    return f"{rule.list} {rule.pattern} for {whose if any(rule.place) else 'every agent'}"


@routes("POST /api/permissions/check", READERS)
async def check_permission(
    agents: AgentRegistry, profiles: Profiles, executor: Executor, by: Principal, body: WouldRun
) -> WouldRunView:
    """Return the decision on an action (allow, ask or deny) and the rule that matches it. The action does not run."""
    from shoal.permissions.actions import action_of, shell_actions  # a slow import

    if bool(body.shell.strip()) == bool(body.action.strip()):
        raise InvalidInput("Specify either a `shell` command or an `action`.")
    if bool(body.profile) == bool(body.agent):
        raise InvalidInput("Specify either a `profile` or an `agent`.")
    if body.agent:
        name = agents.spec(check_agent(agents, by, body.agent)).profile
        rules = profiles.effective(name, by.asker, body.agent)
    else:
        name = body.profile
        profiles.check(name)
        rules = profiles.get(name)
    actions = shell_actions("bash", body.shell, cwd=WORKSPACE) if body.shell.strip() else (action_of(body.action),)

    decided = await anyio.to_thread.run_sync(decide_all, rules, actions, executor.situation)
    return WouldRunView(name, *decided)


@routes("POST /api/permissions/replay", ADMINS)
async def replay_permissions(
    store: Store,
    clock: Clock,
    config: LiveConfig,
    agents: AgentRegistry,
    profiles: Profiles,
    executor: Executor,
    tools: Registry,
    body: Hindsight,
) -> HindsightView:
    """Evaluate past actions against other rules. This changes nothing."""
    if body.rules is not None:
        try:
            profile = compile_profile(
                body.profile or "rules", body.rules, config.current.permissions.profiles, tools.traits
            )
        except ConfigError as error:
            raise InvalidInput(" ".join(error.problems)) from error
    elif body.profile:
        profiles.check(body.profile)
        profile = profiles.get(body.profile)
    else:
        raise InvalidInput("Specify either a `profile` or `rules`.")
    checks = await store.audit.checks(clock.now() - timedelta(hours=body.hours), body.agent)
    if not checks and body.agent and not agents.exists(body.agent):
        raise NotFound(f"Agent {body.agent!r} does not exist and has no actions in this period.")
    changed = changed_decisions(checks, profile, executor.situation)
    return HindsightView(sum(check.count for check in checks), len(checks), changed[:CHANGED_MAX])


@routes("GET /api/permissions/suggestions", ADMINS)
async def suggest_rules(
    store: Store,
    clock: Clock,
    home: Home,
    registry: AgentRegistry,
    known_profiles: Profiles,
    executor: Executor,
    *,
    hours: Hours = 720,
) -> list[SuggestedRule]:
    """Suggest rules for actions that Shoal repeatedly asked about in the last `hours`, and that people always
    allowed.
    """
    since = clock.now() - timedelta(hours=hours)
    asked = await store.approvals.search(pending=False, limit=APPROVALS_MAX)
    lately = [approval for approval in asked if approval.created_at >= since]
    threads = {approval.thread: await store.journal.thread(approval.thread) for approval in lately}
    agents = {thread: info.agent or registry.defaults.agent for thread, info in threads.items() if info is not None}
    profiles = {
        name: known_profiles.get(registry.spec(name).profile) for name in {*agents.values()} if registry.exists(name)
    }
    path = home.config_file
    text = read_regular_text(path) if path.exists() else ""
    suggestions_found = suggestions(lately, agents, profiles, executor.situation)
    return [msgspec.structs.replace(suggestion, accepted=suggestion.text in text) for suggestion in suggestions_found]


@routes("POST /api/permissions/suggestions", ADMINS)
async def accept_rule(
    store: Store,
    clock: Clock,
    home: Home,
    registry: AgentRegistry,
    known_profiles: Profiles,
    executor: Executor,
    setup: LiveSetup,
    by: Principal,
    body: AcceptedRule,
) -> SuggestedRule:
    """Add a suggested rule to shoal.toml. It takes effect on the next turn. 404 if the rule is not suggested, 409
    if shoal.toml already contains it.
    """
    suggestions_found = await suggest_rules(store, clock, home, registry, known_profiles, executor, hours=body.hours)
    rule = next(
        (
            suggestion
            for suggestion in suggestions_found
            if (suggestion.agent, suggestion.allow) == (body.agent, body.allow)
        ),
        None,
    )
    if rule is None:
        raise NotFound("This rule is no longer suggested. Run `shoal permissions suggest` to list the suggestions.")
    if rule.accepted:
        raise Conflict("This rule is already in shoal.toml.")
    override = OverrideSettings(agents=(rule.agent,), allow=rule.allow)
    what = f"add rule allow {', '.join(rule.allow)} for {rule.agent}"
    await setup.change_rules(what, lambda text: with_override(text, override), by.person)
    return msgspec.structs.replace(rule, accepted=True)
