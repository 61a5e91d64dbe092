"""Rules that concern more than one key, checked on the whole configuration."""

import re
from collections.abc import Iterator
from typing import TypeAlias

from shoal.config.defaults import BUILTIN_PROFILES, PROVIDER_KINDS
from shoal.domain.agents import SUBAGENTS
from shoal.domain.errors import ConfigError
from shoal.domain.ids import OWN_PLATFORMS
from shoal.domain.secret import Secret
from shoal.domain.settings import (
    MCP_NAME,
    SANDBOX_KINDS,
    AccountSettings,
    Config,
    MatrixSettings,
    SlackSettings,
    TelegramSettings,
)

Found: TypeAlias = tuple[tuple[str, ...], str]
"""A key and what is wrong with it, as a phrase that goes on after the key's name."""

NEEDED = {
    "telegram": ("token",),
    "discord": ("token",),
    "slack": ("bot_token",),
    "matrix": ("homeserver", "user"),
    "teams": ("app_id", "app_password"),
    "google_chat": ("audience", "service_account_file"),
}
"""What an enabled account cannot do without."""


_HOOK_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check(config: Config) -> Iterator[Found]:
    """Everything that is wrong between keys."""
    yield from _providers(config)
    yield from _database(config)
    yield from _numbers(config)
    yield from _permissions(config)
    yield from _sandbox(config)
    yield from _mcp(config)
    yield from _access(config)
    yield from _webhooks(config)
    for platform in NEEDED:
        yield from _accounts(config, platform, getattr(config.platforms, platform))
    taken = {*OWN_PLATFORMS, SUBAGENTS, *NEEDED}
    for name, webhook in config.platforms.webhook.items():
        if name.partition(".")[0] in taken:  # its people would pass the door of that platform, or none
            yield ("platforms", "webhook", name), "has the name of another platform; allowed: any other name"
        if webhook.enabled and not webhook.secret:
            yield ("platforms", "webhook", name, "secret"), "is missing; allowed: any text both sides know"


def _webhooks(config: Config) -> Iterator[Found]:
    for name, webhook in config.triggers.webhooks.items():
        at = ("triggers", "webhooks", name)
        if not _HOOK_NAME.fullmatch(name):
            yield at, "has another name than a path can have; allowed: letters, digits, - and _"
        if not webhook.secret:
            yield (*at, "secret"), "is missing; allowed: any text of at least 16 characters that the caller knows"
        if bool(webhook.thread) == bool(webhook.channel):
            yield at, "needs a thread, or else a channel; give one of the two"
        if webhook.thread and webhook.thread.count(":") != 2:
            yield (*at, "thread"), f'is "{webhook.thread}"; allowed: PLATFORM:CHANNEL:THREAD'
        if webhook.channel and webhook.channel.count(":") != 1:
            yield (*at, "channel"), f'is "{webhook.channel}"; allowed: PLATFORM:CHANNEL'


def _access(config: Config) -> Iterator[Found]:
    seen: dict[str, str] = {}
    for name, person in config.access.people.items():
        for identity in person.identities:
            if seen.setdefault(identity, name) != name:
                where = f"is named for {seen[identity]} too; allowed: each identity for one person"
                yield ("access", "people", name, "identities"), f"has {identity}, which {where}"


def _providers(config: Config) -> Iterator[Found]:
    for name, provider in config.providers.items():
        if "/" in name:
            yield ("providers", name), "has a / in its name; allowed: a name without, as in NAME/MODEL"
        if provider.kind not in PROVIDER_KINDS and not _is_extension("shoal.providers", provider.kind):
            known = ", ".join(PROVIDER_KINDS)
            yield ("providers", name, "kind"), f'is "{provider.kind}"; allowed: {known}, or that of an extension'
        if provider.kind == "local" and not provider.model_file:
            yield ("providers", name, "model_file"), "is missing; allowed: the path of a GGUF file"


def _database(config: Config) -> Iterator[Found]:
    try:
        url = config.database.url.reveal() if config.database.url.source in ("value", "env") else ""
    except ConfigError:
        return
    if url and not url.startswith(("postgresql://", "postgres://")):
        yield ("database", "url"), "is the address of something else; allowed: postgresql://…, or empty for SQLite"


def _numbers(config: Config) -> Iterator[Found]:
    shares = config.context.events_share + config.context.artifacts_share
    if shares > 1:
        yield ("context", "events_share"), f"and artifacts_share are {shares:g} together; allowed: at most 1"
    if config.engine.stalled_seconds <= config.engine.heartbeat_seconds:
        yield (
            ("engine", "stalled_seconds"),
            f"is {config.engine.stalled_seconds:g}; allowed: more than heartbeat_seconds, best five times that",
        )


def _permissions(config: Config) -> Iterator[Found]:
    profiles = config.permissions.profiles
    names = {*BUILTIN_PROFILES, *profiles}
    if config.permissions.default_profile not in names:
        found = config.permissions.default_profile
        yield ("permissions", "default_profile"), f'is "{found}"; allowed: {", ".join(sorted(names))}'
    if profiles or config.permissions.overrides:
        wrong = [*_extends(config), *_patterns(config)]
        yield from wrong or _circles(config)


def _extends(config: Config) -> Iterator[Found]:
    profiles = config.permissions.profiles
    names = {*BUILTIN_PROFILES, *profiles}
    for name, profile in profiles.items():
        here = ("permissions", "profiles", name)
        if name in BUILTIN_PROFILES:
            yield here, "is a built-in profile; allowed: another name, with extends to build on it"
        if profile.extends and profile.extends not in names - {name}:
            yield (*here, "extends"), f'is "{profile.extends}"; allowed: {", ".join(sorted(names - {name}))}'


def _patterns(config: Config) -> Iterator[Found]:
    profiles, overrides = config.permissions.profiles, config.permissions.overrides
    lists = [(("profiles", name), profile) for name, profile in profiles.items()]
    lists += [(("overrides", str(number)), override) for number, override in enumerate(overrides)]
    for where, rules in lists:
        for key in ("deny", "allow", "ask", "trusted_allow"):
            yield from _refused(("permissions", *where, key), getattr(rules, key), dotall=key == "deny")


def _refused(path: tuple[str, ...], patterns: tuple[str, ...], *, dotall: bool) -> Iterator[Found]:
    from shoal.permissions.patterns import Automaton, PatternRefused

    for pattern in patterns:
        try:
            Automaton().add(pattern, dotall=dotall)
        except PatternRefused as refused:
            yield path, f'has the pattern "{pattern}": {refused}'


def _circles(config: Config) -> Iterator[Found]:
    from shoal.permissions.profiles import layers_of

    sources = config.permissions.profiles
    for name, source in sources.items():
        try:
            layers_of(name, source, sources)
        except ConfigError as error:
            problems = (f"do not fit: {problem}".rstrip(".") for problem in error.problems)
            yield from ((("permissions", "profiles"), problem) for problem in problems)


def _sandbox(config: Config) -> Iterator[Found]:
    kind = config.sandbox.kind
    if kind not in SANDBOX_KINDS and not _is_extension("shoal.sandboxes", kind):
        yield ("sandbox", "kind"), f'is "{kind}"; allowed: {", ".join(SANDBOX_KINDS)}, or that of an extension'


def _mcp(config: Config) -> Iterator[Found]:
    for name, server in config.mcp.items():
        if not re.fullmatch(MCP_NAME, name):
            yield ("mcp", name), "has a name that tools cannot carry; allowed: 1 to 24 lower-case letters, digits and -"
        if server.enabled and bool(server.command) == bool(server.url):
            found = "and url are both given" if server.command else "is missing"
            yield ("mcp", name, "command"), f"{found}; allowed: a command to start the server, or the url of one"
        if server.sandbox and server.url:
            yield ("mcp", name, "sandbox"), "is true for a url; allowed: only with a command, which it encloses"


def _accounts(config: Config, platform: str, accounts: tuple[AccountSettings, ...]) -> Iterator[Found]:
    several = len(accounts) > 1
    seen: set[str] = set()
    for number, account in enumerate(accounts):
        here = ("platforms", platform, str(number)) if several else ("platforms", platform)
        if account.account in seen:
            yield (*here, "account"), f'is "{account.account}" twice; allowed: a name of its own for each account'
        seen.add(account.account)
        if account.enabled:
            yield from ((here + key, text) for key, text in _lacking(config, platform, account))


def _lacking(config: Config, platform: str, account: AccountSettings) -> Iterator[Found]:
    for key in NEEDED[platform]:
        value: str | Secret = getattr(account, key)
        if not value:
            yield (key,), "is missing; give it, or set enabled = false"
    match account:
        case SlackSettings(mode="socket") if not account.app_token:
            yield ("app_token",), 'is missing; Socket Mode needs it, or choose mode = "http"'
        case SlackSettings(mode="http") if not account.signing_secret:
            yield ("signing_secret",), 'is missing; mode = "http" needs it'
        case MatrixSettings() if not account.access_token and not account.password:
            yield ("access_token",), "is missing; give it or a password"
        case TelegramSettings(mode="webhook") if not config.web.public_url:
            yield ("mode",), 'is "webhook", which needs web.public_url; give that, or choose "polling"'
        case TelegramSettings(mode="webhook") if not account.webhook_secret:
            yield ("webhook_secret",), 'is missing; mode = "webhook" needs it'
        case _:
            pass


def _is_extension(group: str, name: str) -> bool:
    from importlib.metadata import entry_points

    return bool(entry_points(group=group, name=name))
