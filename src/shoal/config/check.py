"""Checks combinations of keys in the complete configuration."""

import re
from collections.abc import Iterator
from typing import cast

from shoal.config.defaults import BUILTIN_PROFILES, PROVIDER_KINDS
from shoal.extensions import extensions
from shoal.kernel.errors import ConfigError, InvalidInput
from shoal.kernel.ids import OWN_PLATFORMS, SUBAGENTS
from shoal.kernel.section import Problem, Section, header_problems
from shoal.kernel.settings import SANDBOX_KINDS, Config, PermissionsSettings
from shoal.kernel.zones import zone_named
from shoal.platforms.record import BUILT_IN


def check(config: Config) -> Iterator[Problem]:
    """Yield problems with combinations of keys. Each value has already passed its own checks."""
    zones = {("timezone",): config.timezone}
    zones |= {("access", "people", name, "timezone"): person.timezone for name, person in config.access.people.items()}
    for key, timezone in zones.items():
        if not timezone:
            continue
        try:
            zone_named(timezone)
        except InvalidInput as error:
            yield key, f"cannot be used: {error}".rstrip(".")
    for name, provider in config.providers.items():
        if "/" in name:
            yield ("providers", name), "must have a name without /, because models are written NAME/MODEL"
        if provider.kind not in PROVIDER_KINDS and provider.kind not in extensions("shoal.providers"):
            known = ", ".join(PROVIDER_KINDS)
            yield ("providers", name, "kind"), f'must be {known}, or a name from an extension, not "{provider.kind}"'
        yield from (((("providers", name, *keys)), problem) for keys, problem in header_problems(provider.headers))
        prices = {("price",): provider.price, **{("prices", model): price for model, price in provider.prices.items()}}
        for key, price in prices.items():
            if isinstance(price, dict) and "input" not in price:
                yield ("providers", name, *key), "must be a number, or a table with at least input"
        if provider.kind == "local" and not provider.model_file:
            yield ("providers", name, "model_file"), "must be the path of a GGUF file"
    try:
        url = config.database.url.reveal() if config.database.url.source in ("value", "env") else ""
    except ConfigError:
        url = ""
    if url and not url.startswith(("postgresql://", "postgres://")):
        yield ("database", "url"), "must be a PostgreSQL URL, postgresql://…, or empty for SQLite"
    shares = config.context.events_share + config.context.artifacts_share
    if shares > 1:
        yield ("context", "events_share"), f"and artifacts_share must add up to at most 1, not {shares:g}"
    stalled = config.engine.stalled_seconds
    if stalled <= config.engine.heartbeat_seconds:
        best = "more than heartbeat_seconds, ideally five times as much"
        yield ("engine", "stalled_seconds"), f"must be {best}, not {stalled:g}"
    yield from _permissions(config.permissions)
    kind = config.sandbox.kind
    if kind not in SANDBOX_KINDS and kind not in extensions("shoal.sandboxes"):
        yield ("sandbox", "kind"), f'must be {", ".join(SANDBOX_KINDS)}, or a name from an extension, not "{kind}"'
    seen: dict[str, str] = {}
    for name, person in config.access.people.items():
        for identity in person.identities:
            if seen.setdefault(identity, name) != name:
                where = f"also belongs to {seen[identity]}. List each identity under one person"
                yield ("access", "people", name, "identities"), f"has {identity}, which {where}"
    for name in config.__struct_fields__:
        section = getattr(config, name)
        if isinstance(section, Section):
            yield from (((name, *keys), problem) for keys, problem in section.problems())
        elif isinstance(section, dict):
            for table, entry in cast("dict[str, object]", section).items():
                if isinstance(entry, Section):
                    yield from (((name, table, *keys), problem) for keys, problem in entry.problems(table))
    yield from _platforms(config)


def _permissions(settings: PermissionsSettings) -> Iterator[Problem]:
    """Yield problems with profiles and overrides. Checks cycles of `extends` only if everything else is valid."""
    profiles, overrides = settings.profiles, settings.overrides
    names = {*BUILTIN_PROFILES, *profiles}
    if settings.default_profile not in names:
        yield (
            ("permissions", "default_profile"),
            f'must be one of {", ".join(sorted(names))}, not "{settings.default_profile}"',
        )
    if not (profiles or overrides):
        return
    from shoal.permissions.patterns import Automaton, PatternRefused
    from shoal.permissions.profiles import layers_of

    is_sound = True
    for name, profile in profiles.items():
        here = ("permissions", "profiles", name)
        if name in BUILTIN_PROFILES:
            is_sound = False
            yield (
                here,
                "is the name of a built-in profile. Choose another name, and set extends to build on the built-in one",
            )
        if profile.extends and profile.extends not in names - {name}:
            is_sound = False
            yield (*here, "extends"), f'must be one of {", ".join(sorted(names - {name}))}, not "{profile.extends}"'
    lists = [(("profiles", name), profile) for name, profile in profiles.items()]
    lists += [(("overrides", str(number)), override) for number, override in enumerate(overrides)]
    for where, rules in lists:
        for key in ("deny", "allow", "ask", "trusted_allow"):
            patterns: tuple[str, ...] = getattr(rules, key)
            for pattern in patterns:
                try:
                    Automaton().add(pattern, dotall=key == "deny")
                except PatternRefused as refused:
                    is_sound = False
                    yield ("permissions", *where, key), f'has the pattern "{pattern}": {refused}'
    for name, profile in profiles.items() if is_sound else ():
        try:
            layers_of(name, profile, profiles)
        except ConfigError as error:
            for problem in error.problems:
                yield ("permissions", "profiles"), f"are inconsistent: {problem}".rstrip(".")


def _platforms(config: Config) -> Iterator[Problem]:
    for platform, accounts in config.platforms.accounts.items():
        seen = set[str]()
        for number, account in enumerate(accounts):
            here = ("platforms", platform, str(number)) if len(accounts) > 1 else ("platforms", platform)
            if account.account in seen:
                yield (*here, "account"), f'is "{account.account}" for two accounts. Give each account a different name'
            seen.add(account.account)
            if not account.enabled:
                continue
            for key, problem in account.account_problems(config.web.public_url):
                yield (*here, key), problem
    for name in config.platforms.accounts:
        if name in OWN_PLATFORMS or name == SUBAGENTS or not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
            yield ("platforms", name), "has a reserved name, or characters that are not allowed in thread ids"
    taken = {*OWN_PLATFORMS, SUBAGENTS, *BUILT_IN, *config.platforms.accounts}
    for name, webhook in config.platforms.webhook.items():
        if name.partition(".")[0] in taken:  # Two platforms with the same name would share one access gate.
            yield ("platforms", "webhook", name), "has the name of another platform. Choose a different name"
        if webhook.enabled and not webhook.secret:
            yield ("platforms", "webhook", name, "secret"), "is missing. Set it to a secret that both sides share"
