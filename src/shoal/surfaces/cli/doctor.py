"""`shoal doctor`: check everything that Shoal needs, one line per check, with a remedy for each problem."""

import asyncio
import logging
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import cast

import msgspec

from shoal.accounts import every_account, make_adapters
from shoal.agents.folder import read_shared
from shoal.agents.registry import AgentDefaults, AgentRegistry
from shoal.config import Config, default_model, open_catalog
from shoal.extensions import extension_sandbox, extension_tools, platform_named
from shoal.feature import features
from shoal.installation import how_to_add
from shoal.kernel.clock import SystemClock
from shoal.kernel.crash_log import SET_ASIDE, SetAside
from shoal.kernel.errors import (
    ConfigError,
    InvalidInput,
    ShoalError,
    StoreError,
    StoreNewer,
    StoreReadOnly,
    StoreUnreleased,
)
from shoal.kernel.phrases import counted
from shoal.kernel.ports import Settings
from shoal.kernel.secret import Secret
from shoal.kernel.settings_platforms import AccountSettings, PlatformsSettings
from shoal.maintenance import DAY_SECONDS, SERVICE_PROBLEMS, service_problem
from shoal.models.catalog import Catalog, existing_model
from shoal.permissions.access import EVERYBODY
from shoal.sandbox.choose import open_sandbox, reach
from shoal.setup.prices import PRICE_TODO, lacks_price, unpriced_note
from shoal.store.driver import migrations
from shoal.store.health import FileHealth
from shoal.store.lock import is_held
from shoal.store.sqlite import refuse_schema, schema_version
from shoal.store.sqlite_checks import WHAT_TO_DO, check_file
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.findings import Check, DoctorFinding, fail, ok, warn
from shoal.surfaces.cli.output import echo, print_json, sentence, when
from shoal.turn.fitting import WINDOW_TOKENS_DEFAULT
from shoal.turn.skills import skill_roots
from shoal.turn.text_files import FileCache, SkillReader

FREE_BYTES_MIN = 268_435_456
SOURCES_MAX = 5
START_OVER = "Run `shoal docs install` to see which files to keep."


@command(example="shoal doctor")
def doctor(context: CommandContext, as_json: bool) -> int:
    """Check configuration, database, providers, sandbox, platforms and skills. Exits with 1 if a check fails."""
    logging.getLogger("shoal").addHandler(logging.NullHandler())  # problems appear as findings, not in the log
    findings: list[DoctorFinding] = []

    async def look() -> None:
        async for finding in examine(context):
            findings.append(finding)
            if not as_json:
                todo = f" {finding.todo}" if finding.todo else ""
                echo(f"{finding.status:<4}  {finding.check}: {sentence(finding.message)}{todo}")

    asyncio.run(look())
    if as_json:
        print_json(findings)
    else:
        echo(next_step(context, findings))
    return 1 if any(finding.status == "fail" for finding in findings) else 0


def next_step(context: CommandContext, findings: list[DoctorFinding]) -> str:
    failed = next((finding for finding in findings if finding.status == "fail"), None)
    if failed is not None:
        return f"Next: {failed.check}: {failed.todo}"
    if not context.root.is_dir():
        return "Next: run `shoal setup` to connect a model and a chat."
    if any(finding.check == "models" and finding.status == "warn" for finding in findings):
        has_chat = not any(finding.check == "platforms" for finding in findings)
        return (
            "Next: run `shoal setup model` to connect a model."
            if has_chat
            else "Next: run `shoal setup` to connect a model and a chat."
        )
    if not is_held(context.home.lock_file):
        return "Next: run `shoal run` to start Shoal."
    return "Everything is set up. Write to your agent."


async def examine(context: CommandContext) -> AsyncGenerator[DoctorFinding]:
    """Run all checks, the most important ones first."""
    for finding in _home(context):
        yield finding
    if context.root.exists() and not context.root.is_dir():
        return
    try:
        config = context.config()
    except ConfigError as error:
        for problem in error.problems:
            yield fail(
                "config", problem, ("Correct the configuration. Run `shoal docs configuration` for a list of keys.")
            )
        return
    yield ok("config", "every key is known and every value is valid.")
    of_features = (cast(Check, feature.load(feature.doctor)) for feature in features() if feature.doctor)
    for check in (*CHECKS, *of_features):
        async for finding in check(context, config):
            yield finding


def _home(context: CommandContext) -> Iterator[DoctorFinding]:
    root, home = context.root, context.home
    if not context.nearest.is_dir():
        yield fail("home", f"{context.nearest} is not a directory.", "Choose another with --home DIR or SHOAL_HOME.")
        return
    if not root.is_dir():
        yield warn("home", f"{root} does not exist yet.", "Run `shoal setup` to create it.")
        return
    secrets = sorted(home.secrets.iterdir()) if home.secrets.is_dir() else []
    private = (path for path in (root, home.config_file, home.token_file, home.secrets, *secrets) if path.exists())
    exposed = [path for path in private if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if exposed:
        names = " ".join(str(path) for path in exposed)
        yield warn("home", f"other users of this machine can read {names}.", f"Run `chmod go= {names}`.")
    else:
        yield ok("home", f"{root} is private.")
    try:
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        todo = "Check the disk and the write permissions, then restart Shoal."
        yield fail("disk", f"{root} is not writable: {error.strerror}.", todo)
        return
    free = shutil.disk_usage(root).free
    if free < FREE_BYTES_MIN:
        yield warn(
            "disk",
            (f"the disk has only {free // 1048576} MiB of free space."),
            "Free some space before the disk is full.",
        )
    if shutil.which("git") is None:
        yield warn("git", "git is not installed, so workspaces keep no history.", "Install git.")


async def _database(context: CommandContext, config: Config) -> AsyncGenerator[DoctorFinding]:

    if config.database.url:
        try:
            from shoal.store.postgres import answering

            version, behind = await answering(config.database.url.reveal())
        except StoreUnreleased as error:
            yield fail("database", str(error), START_OVER)
            return
        except (StoreNewer, StoreReadOnly) as error:
            what, _, todo = str(error).partition(". ")
            yield fail("database", f"{what}.", todo)
            return
        except ShoalError as error:
            yield fail("database", str(error), "Correct database.url or DATABASE_URL.")
            return
        if behind:
            message = f"PostgreSQL {version} responds, but its schema is outdated or missing."
            yield warn("database", message, "Start Shoal, or run `shoal migrate`, to update the schema.")
        else:
            yield ok("database", f"PostgreSQL {version} responds, and its schema is current.")
        return
    file = context.home.database_file
    if not file.exists():
        yield ok("database", "the file does not exist yet. The first start creates it.")
        return
    newest = migrations("sqlite")[-1][0]
    try:
        version = schema_version(file)
        refuse_schema(version, newest, file)
        if not is_held(context.home.lock_file):
            files = FileHealth(file)
            try:
                files.admit()
            finally:
                files.release()
        problem = check_file(file, "integrity_check").problem
    except StoreUnreleased as error:
        yield fail("database", str(error), START_OVER)
        return
    except StoreError as error:
        what, _, todo = str(error).partition(". ")
        yield fail("database", f"{what}.", todo)
        return
    except sqlite3.Error as error:
        yield fail("database", f"Shoal cannot read {file}: {error}.", "Check the file's disk and permissions.")
        return
    if problem:
        yield fail("database", f"{file} is damaged: {problem}.", WHAT_TO_DO)
    elif version < newest:
        yield warn(
            "database", f"{file} has an older schema.", ("Start Shoal, or run `shoal migrate`, to update the schema.")
        )
    else:
        yield ok("database", f"{file} is intact ({file.stat().st_size // 1024:,} KiB, schema {version}).")


async def _providers(context: CommandContext, config: Config) -> AsyncGenerator[DoctorFinding]:
    try:
        read_shared(context.home)
    except InvalidInput as error:
        yield fail("agents", str(error), "Run `shoal docs agents` for a list of keys.")
    try:
        catalog = open_catalog(config, os.environ, SystemClock())
    except ConfigError as error:
        yield fail(
            "models", str(error), ("Correct the configuration. Run `shoal docs configuration` for a list of keys.")
        )
        return
    try:
        if not config.providers and not config.model.name:
            message = (
                "no provider is configured. Shoal uses Ollama if it is running, and otherwise the built-in `demo`."
            )
            yield warn("models", message, "Run `shoal setup model` to connect a model.")
            return
        for name, listing in (await catalog.refresh()).items():
            if listing.error:
                yield fail(f"provider {name}", listing.error, f"Check [providers.{name}] and its key.")
            else:
                settings = config.providers.get(name)
                key = "the key is valid" if settings is not None and settings.api_key else "it answers"
                yield ok(f"provider {name}", f"{key}; {counted(len(listing.models), 'model')}.")
        chosen, troubled = default_model(config), False
        for key, model in (("name", chosen), *(("fallback", other) for other in config.model.fallback)):
            trouble = _model(catalog, model, "models", f"Set model.{key}.")
            if trouble is not None:
                troubled = True
                yield trouble
        named = [chosen, *config.model.fallback, *_models_of_agents(context, config)]
        unpriced = [model for model in dict.fromkeys(named) if lacks_price(config, catalog, model)]
        if unpriced:
            yield warn("prices", unpriced_note(unpriced), PRICE_TODO)
        if not troubled:
            yield ok("models", f"the default model is {chosen}.")
            for model in (chosen, *config.model.fallback):
                if not (config.model.context_tokens_max or catalog.route(model).context_tokens):
                    message = (
                        f"the context window of {model} is unknown, so Shoal assumes {WINDOW_TOKENS_DEFAULT:,} tokens."
                    )
                    yield warn("window", message, "Set model.context_tokens_max to the size of the context window.")
    finally:
        await catalog.close()


def _models_of_agents(context: CommandContext, config: Config) -> list[str]:
    agents = AgentRegistry(context.home, AgentDefaults.of(config, default_model(config)))
    names = list[str]()
    for name in agents.names():
        with suppress(InvalidInput):  # the agents check reports it
            spec = agents.known(name)
            names += [spec.model, *spec.fallback] if spec is not None else []
    return names


def _model(catalog: Catalog, name: str, check: str, todo: str) -> DoctorFinding | None:
    try:
        catalog.route(name)
    except InvalidInput as error:
        return fail(check, str(error), todo)
    try:
        existing_model(catalog, name)
    except InvalidInput as error:
        return warn(check, str(error), todo)
    return None


async def _sandbox(_: CommandContext, config: Config) -> AsyncGenerator[DoctorFinding]:
    try:
        chosen = await open_sandbox(config.sandbox, extension_sandbox)
    except ShoalError as error:
        yield fail(
            "sandbox", str(error), ('Set sandbox.kind = "auto", or install the requirements of the configured sandbox.')
        )
        return
    await chosen.sandbox.close()
    if chosen.note:
        todo = "" if chosen.sandbox.isolated else "`shoal docs sandbox` lists what a sandbox needs."
        yield warn("sandbox", f"{chosen.note} Commands reach {reach(chosen.sandbox, config.sandbox)}.", todo)
    else:
        yield ok("sandbox", f"{chosen.sandbox.name}. Commands reach {reach(chosen.sandbox, config.sandbox)}.")


async def _platforms(context: CommandContext, config: Config) -> AsyncGenerator[DoctorFinding]:
    is_connected = False
    for platform, name, account in every_account(config):
        is_connected = is_connected or account.enabled
        named = msgspec.structs.replace(account, account=name) if platform == "webhook" else account
        yield await asyncio.to_thread(_account, platform, named, context, config)
    if not is_connected:
        yield ok("platforms", "no platform is configured. The page, the terminal and the API always work.")


def _account(platform: str, account: AccountSettings, context: CommandContext, config: Config) -> DoctorFinding:
    check = f"{platform} {account.account}"
    if not account.enabled:
        return ok(check, "the account is switched off.")
    for field in msgspec.structs.fields(account):
        value: object = getattr(account, field.name)
        if isinstance(value, Secret):
            try:
                value.reveal()
            except ConfigError as error:
                return fail(check, f"{field.name}: {error}", f"Set platforms.{platform}.{field.name}.")
    if platform != "webhook":  # other problems are reported when the adapter is created
        alone = PlatformsSettings(accounts={platform: (account,)})
        unread = cast(Settings, None)  # creating an adapter reads no settings
        try:
            make_adapters(msgspec.structs.replace(config, platforms=alone), context.home, unread, SystemClock())
        except ConfigError as error:
            what, _, todo = str(error).partition(". ")
            return fail(check, f"{what}.", todo or f"Correct [platforms.{platform}].")
    if account.agent and not context.home.agent(account.agent).is_dir():
        todo = f"Create the agent with `shoal agents create {account.agent}`, or correct platforms.{platform}.agent."
        return warn(check, f"the agent {account.agent!r} does not exist, so the default agent answers there.", todo)
    optional = platform_named(platform).optional if platform != "webhook" else None
    if optional is not None and find_spec(optional[0]) is None:
        return warn(check, f"{optional[1]} without the `{platform}` extra.", how_to_add(platform))
    if not account.allow and not account.owner:
        todo = f"Set platforms.{platform}.owner to your user id there, or run `shoal setup chat` to find it."
        return warn(check, "no one can talk to agents there without a pairing code.", todo)
    if EVERYBODY in account.allow:
        return _everybody(check, config)
    return ok(check, f"allowed users: {len(account.allow)}, owner: {account.owner or 'not set'}.")


def _everybody(check: str, config: Config) -> DoctorFinding:
    each, all_of_them = (
        " and ".join(
            [*([f"${usd:g}"] if usd else []), *([counted(tokens, "token")] if tokens else [])],
        )
        for usd, tokens in (
            (config.budget.usd_per_stranger_day, config.budget.tokens_per_stranger_day),
            (config.budget.usd_strangers_per_day, config.budget.tokens_strangers_per_day),
        )
    )
    if not each or not all_of_them:
        todo = "Set budget.tokens_per_stranger_day and budget.tokens_strangers_per_day."
        return warn(
            check,
            "everyone can talk to agents there, and a daily limit per untrusted person or for all of them is missing.",
            todo,
        )
    return ok(
        check,
        f"everyone can talk to agents there. Each untrusted person can spend {each} per day, and all of them "
        f"together {all_of_them}.",
    )


async def _tools(context: CommandContext, config: Config) -> AsyncGenerator[DoctorFinding]:
    try:
        extension_tools(config.tools)
    except ConfigError as error:
        what, _, todo = str(error).partition(". ")
        yield fail("tools", f"{what}.", todo or "Correct or uninstall the package.")


async def _skills(context: CommandContext, config: Config) -> AsyncGenerator[DoctorFinding]:
    skill_list = SkillReader(FileCache()).read(
        skill_roots(context.home, context.home.agent(config.agents.default_agent))
    )
    for problem in skill_list.problems:
        yield warn("skills", problem.text, f"Correct {problem.path}.")
    if not skill_list.problems:
        yield ok("skills", f"{counted(len(skill_list.found), 'skill')} available.")


async def _agents(context: CommandContext, config: Config) -> AsyncGenerator[DoctorFinding]:
    from shoal.surfaces.cli.known_tools import agent_checks

    if not context.root.is_dir():  # reading an agent creates its workspace
        return
    registry = AgentRegistry(context.home, AgentDefaults.of(config, default_model(config)))
    catalog = open_catalog(config, os.environ, SystemClock())
    try:
        checks = agent_checks(config, catalog)
        defaults = (registry.defaults.model, *config.model.fallback)  # already checked
        for name in registry.names():
            check, todo = f"agent {name}", f"Correct {context.home.agent(name)}/agent.toml."
            try:
                agent = registry.spec(name)
                checks.profile(agent.profile)
                for tool in agent.tools:
                    checks.tool(tool)
            except ShoalError as error:
                yield fail(check, str(error), todo)
                continue
            named = [model for model in (agent.model, *agent.fallback) if model not in defaults]
            trouble = next(filter(None, (_model(catalog, model, check, todo) for model in named)), None)
            yield trouble or ok(check, f"model {agent.model}, profile {agent.profile}.")
    finally:
        await catalog.close()


async def _services(context: CommandContext, _config: Config) -> AsyncGenerator[DoctorFinding]:
    try:
        problems = await asyncio.to_thread(context.read, lambda store: store.settings.page(SERVICE_PROBLEMS))
        aside = await asyncio.to_thread(context.read, lambda store: store.settings.page(SET_ASIDE))
    except ShoalError:  # the database check reports it
        return
    now = SystemClock().now()
    for name, stored in problems:
        problem = service_problem(stored)
        if (now - problem.at).total_seconds() < DAY_SECONDS:
            todo = "Shoal restarts it automatically. See the log for details."
            yield warn("services", f"“{name}” failed on {when(problem.at)}: {problem.why}", todo)
    if aside:
        rows = [msgspec.json.decode(stored, type=SetAside) for _, stored in aside]
        sources = {f"{row.platform} {row.lane}" for row in rows}
        named = ", ".join(sorted(sources)[:SOURCES_MAX])
        what = f"Shoal set aside {counted(len(aside), 'message')} that had crashed it twice: {named}."
        yield warn("messages", what, "Report this as a bug.")


CHECKS: tuple[Check, ...] = (
    _database,
    _services,
    _providers,
    _agents,
    _sandbox,
    _platforms,
    _tools,
    _skills,
)
