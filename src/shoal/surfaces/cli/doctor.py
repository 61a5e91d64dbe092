"""`shoal doctor`: looks at everything a running Shoal needs, a line each, and says what to do about what is wrong."""

import asyncio
import shutil
import stat
from collections.abc import AsyncGenerator, Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from shoal.config.platforms import Account
from shoal.config.secret import Secret
from shoal.domain.errors import ConfigError, ShoalError, StoreError, StoreNewer, StoreReadOnly
from shoal.surfaces.cli.output import json_option, print_json, printable, when
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.agents.registry import Agents
    from shoal.config import Config
    from shoal.providers.catalog import Catalog

FREE_BYTES_MIN = 268_435_456
"""Less free disk than this is a warning."""

EXTRAS = {
    "telegram": ("", ""),
    "discord": ("discord", "discord"),
    "slack": ("websockets", "slack"),
    "matrix": ("", ""),
    "teams": ("jwt", "teams"),
    "google_chat": ("jwt", "google_chat"),
}
"""For each platform the package it needs and the extra that brings it; empty where it needs none."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. `todo` says what to do unless it is ok."""

    check: str
    status: Literal["ok", "warn", "fail"]
    message: str
    todo: str = ""


@click.command()
@json_option
@click.pass_obj
def doctor(place: Place, as_json: bool) -> int:
    """Check configuration, database, providers, sandbox, platforms and skills; exit 1 if something fails."""
    findings: list[Finding] = []

    async def look() -> None:
        async for finding in examine(place):
            findings.append(finding)
            if not as_json:
                _print(finding)

    asyncio.run(look())
    if as_json:
        print_json(findings)
    return 1 if any(finding.status == "fail" for finding in findings) else 0


def _print(finding: Finding) -> None:
    todo = f" {finding.todo}" if finding.todo else ""
    print(printable(f"{finding.status:<4}  {finding.check}: {finding.message}{todo}"), flush=True)


async def examine(place: Place) -> AsyncGenerator[Finding]:
    """Everything there is to look at, in the order in which it matters."""
    for finding in _home(place):
        yield finding
    try:
        config = place.config()
    except ConfigError as error:
        for problem in error.problems:
            yield Finding("config", "fail", problem, "Correct it; docs/configuration.md lists every key.")
        return
    yield Finding("config", "ok", "every key is known and has a value that is allowed.")
    for check in CHECKS:
        async for finding in check(place, config):
            yield finding


def _home(place: Place) -> Iterator[Finding]:
    root, home = place.root, place.home
    if not root.is_dir():
        yield Finding("home", "warn", f"{root} does not exist yet.", "`shoal init` makes it.")
        return
    exposed = [path for path in (root, home.config_file, home.token_file) if _is_exposed(path)]
    if exposed:
        names = " ".join(str(path) for path in exposed)
        yield Finding("home", "warn", f"others on this machine can read {names}.", f"Run `chmod go= {names}`.")
    else:
        yield Finding("home", "ok", f"{root} is closed to others.")
    free = shutil.disk_usage(root).free
    if free < FREE_BYTES_MIN:
        yield Finding("disk", "warn", f"{free // 1_048_576} MiB are free.", "Free some space before it is full.")
    if shutil.which("git") is None:
        yield Finding("git", "warn", "git is not installed; workspaces keep no history.", "Install git.")


def _is_exposed(path: Path) -> bool:
    return path.exists() and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


async def _database(place: Place, config: "Config") -> AsyncGenerator[Finding]:
    import sqlite3

    from shoal.store.health import WHAT_TO_DO, FileHealth, check_file
    from shoal.store.lock import is_held
    from shoal.store.statements import migrations
    from shoal.surfaces.cli.backup import schema_version

    if config.database.url:
        yield await _postgres(config.database.url)
        return
    file = place.home.database_file
    if not file.exists():
        yield Finding("database", "ok", "there is none yet; the first start makes it.")
        return
    newest = len(migrations("sqlite"))
    try:
        version = schema_version(file)
        if not is_held(place.home.lock_file):
            files = FileHealth(file)
            try:
                files.admit()
            finally:
                files.release()
        found = check_file(file, "integrity_check").problem
    except StoreError as error:
        what, _, todo = str(error).partition(". ")
        yield Finding("database", "fail", f"{what}.", todo)
        return
    except sqlite3.Error as error:
        yield Finding("database", "fail", f"{file} cannot be read: {error}.", "Check its disk and its rights.")
        return
    if found:
        yield Finding("database", "fail", f"{file} is damaged: {found}.", WHAT_TO_DO)
    elif version > newest:
        yield Finding("database", "fail", f"{file} was written by a newer Shoal.", "Install that version.")
    elif version < newest:
        yield Finding(
            "database", "warn", f"{file} has an older schema.", "The next start, or `shoal migrate`, lifts it."
        )
    else:
        yield Finding("database", "ok", f"{file} is whole ({file.stat().st_size // 1024:,} KiB, schema {version}).")


async def _postgres(url: Secret) -> Finding:
    try:
        from shoal.store.postgres import answering

        version, behind = await answering(url.reveal())
    except (StoreNewer, StoreReadOnly) as error:
        what, _, todo = str(error).partition(". ")
        return Finding("database", "fail", f"{what}.", todo)
    except ShoalError as error:
        return Finding("database", "fail", str(error), "Correct database.url or DATABASE_URL.")
    if behind:
        todo = "The next start, or `shoal migrate`, makes what is missing."
        return Finding("database", "warn", f"PostgreSQL {version} answers; its tables are older or not made yet.", todo)
    return Finding("database", "ok", f"PostgreSQL {version} answers; its tables are this version's.")


async def _backups(place: Place, config: "Config") -> AsyncGenerator[Finding]:
    from shoal.backups import LOOK_SECONDS_MAX, PROBLEM, listed_in
    from shoal.domain.clock import SystemClock
    from shoal.factories import backup_place

    where = backup_place(config, place.home)
    if where is None:
        yield Finding("backups", "warn", "none are made.", "Set backup.to to a directory on another disk, or s3://….")
        return
    try:
        problem = await asyncio.to_thread(place.read, lambda store: store.settings.get(*PROBLEM))
    except ShoalError:  # which was told of the database
        problem = ""
    try:
        kept = await asyncio.to_thread(listed_in, where)
    except OSError as error:
        yield Finding("backups", "fail", f"{config.backup.to} cannot be read: {error}.", "Check backup.to.")
        return
    hours = config.backup.every_hours
    newest = f"{len(kept)} are kept, the newest is {kept[0].name}." if kept else "there is none yet."
    late = hours and kept and (SystemClock().now() - kept[0].at).total_seconds() > 2 * hours * 3600 + LOOK_SECONDS_MAX
    if problem:
        yield Finding("backups", "fail", f"{newest} The last one failed: {problem}", "`shoal backup` tries again.")
    elif late:
        yield Finding("backups", "warn", newest, f"One is due every {hours:g} hours while `shoal run` is running.")
    else:
        yield Finding("backups", "ok", newest)


async def _providers(place: Place, config: "Config") -> AsyncGenerator[Finding]:
    from shoal.config import default_model
    from shoal.surfaces.cli.models import open_catalog

    try:
        catalog = open_catalog(place)
    except ConfigError as error:
        yield Finding("models", "fail", str(error), "Correct it; docs/configuration.md lists every key.")
        return
    try:
        if not config.providers and not config.model.name:
            message = "no provider is configured; a running Ollama answers, else the stand-in `demo`."
            yield Finding("models", "warn", message, "Set ANTHROPIC_API_KEY, OPENAI_API_KEY or another provider's key.")
            return
        for name, listing in (await catalog.refresh()).items():
            if listing.error:
                yield Finding(f"provider {name}", "fail", listing.error, f"Check [providers.{name}] and its key.")
            else:
                yield Finding(f"provider {name}", "ok", f"the key is valid; {len(listing.models)} models.")
        chosen, troubled = default_model(config), False
        for key, model in (("name", chosen), *(("fallback", other) for other in config.model.fallback)):
            found = _model(catalog, model)
            if found is not None:
                troubled = True
                yield Finding("models", found[0], found[1], f"Set model.{key}.")
        if not troubled:
            yield Finding("models", "ok", f"{chosen} answers by default.")
    finally:
        await catalog.close()


def _model(catalog: "Catalog", name: str) -> tuple[Literal["warn", "fail"], str] | None:
    """What is wrong with a model that is named somewhere."""
    from shoal.domain.errors import InvalidInput
    from shoal.providers.known import existing_model

    try:
        catalog.route(name)
    except InvalidInput as error:
        return "fail", str(error)
    try:
        existing_model(catalog, name)
    except InvalidInput as error:
        return "warn", str(error)
    return None


async def _sandbox(_: Place, config: "Config") -> AsyncGenerator[Finding]:
    from shoal.factories import make_sandbox

    try:
        chosen = await make_sandbox(config)
    except ShoalError as error:
        yield Finding("sandbox", "fail", str(error), 'Set sandbox.kind = "auto", or install what it needs.')
        return
    await chosen.sandbox.close()
    if chosen.note:
        todo = "Install bubblewrap (Debian: apt-get install bubblewrap)." if not chosen.sandbox.isolated else ""
        yield Finding("sandbox", "warn", chosen.note, todo)
    else:
        yield Finding("sandbox", "ok", f"{chosen.sandbox.name}, network {config.sandbox.network}.")


async def _platforms(_: Place, config: "Config") -> AsyncGenerator[Finding]:
    found = False
    for name, (package, extra) in EXTRAS.items():
        accounts: tuple[Account, ...] = getattr(config.platforms, name)
        for account in accounts:
            found = found or account.enabled
            for finding in _account(name, account, package, extra):
                yield finding
    for name, account in config.platforms.webhook.items():
        found = found or account.enabled
        for finding in _account("webhook", msgspec.structs.replace(account, account=name), "", ""):
            yield finding
    if not found:
        yield Finding("platforms", "ok", "none is configured; the page, the terminal and the API always work.")


def _account(platform: str, account: Account, package: str, extra: str) -> Generator[Finding]:
    check = f"{platform} {account.account}"
    if not account.enabled:
        yield Finding(check, "ok", "is switched off.")
        return
    if package and find_spec(package) is None:
        yield Finding(check, "fail", "the package it needs is missing.", f"Install shoal[{extra}].")
        return
    for field in msgspec.structs.fields(account):
        value: object = getattr(account, field.name)
        if isinstance(value, Secret):
            try:
                value.reveal()
            except ConfigError as error:
                yield Finding(check, "fail", f"{field.name}: {error}", f"Set platforms.{platform}.{field.name}.")
                return
    if not account.allow and not account.owner:
        todo = f"Set platforms.{platform}.allow, or owner."
        yield Finding(check, "warn", "nobody may speak there before being paired.", todo)
    else:
        yield Finding(check, "ok", f"{len(account.allow)} allowed, owner {account.owner or 'not set'}.")


async def _mcp(place: Place, config: "Config") -> AsyncGenerator[Finding]:
    from shoal.domain.clock import SystemClock
    from shoal.servers import make_pins, probe

    if not config.mcp:
        return
    try:
        listed = await asyncio.to_thread(
            place.read, lambda store: make_pins(config, place.home, store, SystemClock()).listed()
        )
    except ShoalError:  # which was told of the database
        listed = []
    pinned = {one.server: one for one in listed}
    for state in await probe(config, place.home):
        check, known = f"mcp {state.server}", pinned.get(state.server)
        if state.status != "up":
            yield Finding(check, "fail", state.why, f"Correct [mcp.{state.server}], or set enabled = false there.")
            continue
        since = (
            f"pinned since {when(known.since)}" if known is not None else "not pinned: its first start allows them all"
        )
        yield Finding(check, "ok", f"{len(state.tools)} tools ({since}): {', '.join(state.tools)}.")
        if known is not None and known.waiting:
            names = ", ".join(f"{pin.name} ({pin.state})" for pin in known.waiting)
            yield Finding(check, "warn", f"waits for you: {names}.", "`shoal mcp show NAME` shows what changed.")


async def _skills(place: Place, config: "Config") -> AsyncGenerator[Finding]:
    from shoal.surfaces.cli.skills import read_skills

    found = read_skills(place, config.agents.default_agent, None)
    for problem in found.problems:
        yield Finding("skills", "warn", problem.text, f"Correct {problem.path}.")
    if not found.problems:
        yield Finding("skills", "ok", f"{len(found.found)} can be used.")


async def _agents(place: Place, config: "Config") -> AsyncGenerator[Finding]:
    from shoal.surfaces.cli.agents import open_agents
    from shoal.surfaces.cli.models import open_catalog

    if not place.root.is_dir():  # looking at an agent makes its workspace
        return
    registry = open_agents(place)
    catalog = open_catalog(place)
    try:
        for name in registry.names():
            yield _agent(place, config, catalog, registry, name)
    finally:
        await catalog.close()


def _agent(place: Place, config: "Config", catalog: "Catalog", registry: "Agents", name: str) -> Finding:
    from functools import partial

    from shoal.factories import make_profiles, tool_names
    from shoal.office import make_checks

    check, todo = f"agent {name}", f"Correct {place.home.agent(name)}/agent.toml."
    checks = make_checks(catalog, make_profiles(config), partial(tool_names, config))
    try:
        agent = registry.spec(name)
        checks.profile(agent.profile)
        for tool in agent.tools:
            checks.tool(tool)
    except ShoalError as error:
        return Finding(check, "fail", str(error), todo)
    defaults = (registry.defaults.model, *config.model.fallback)  # looked at already
    for model in (agent.model, *agent.fallback):
        found = _model(catalog, model) if model not in defaults else None
        if found is not None:
            return Finding(check, found[0], found[1], todo)
    return Finding(check, "ok", f"model {agent.model}, profile {agent.profile}.")


CHECKS = (_database, _backups, _providers, _agents, _sandbox, _platforms, _mcp, _skills)
