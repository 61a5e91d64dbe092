"""Makes each part from its section of the configuration; what depends on what is wired in app.py."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import msgspec

from shoal.agents.children import Children
from shoal.agents.registry import AgentDefaults, AgentRegistry
from shoal.backups import FOLDERS, BackupPlace, Backups, DirectoryPlace
from shoal.config import Config, default_model
from shoal.config.defaults import DEMO, KNOWN_PROVIDERS, SANDBOX_KINDS
from shoal.delivery.hub import Hub
from shoal.delivery.previews import NO_PREVIEWS, Previews
from shoal.delivery.sender import Sender
from shoal.domain import ports
from shoal.domain.agents import TurnLimits
from shoal.domain.clock import Clock, SystemClock
from shoal.domain.errors import ConfigError, ProviderDown, ProviderRefused, StoreUnavailable
from shoal.domain.files import STILL_FOLDERS, Files, Folders
from shoal.domain.home import Home
from shoal.domain.ports import Settings
from shoal.domain.settings import FilesSettings, ProviderSettings
from shoal.domain.webhooks import REPEATED_SECONDS, Webhook
from shoal.extensions import extensions, load_extension
from shoal.permissions.profiles import Override, Profiles, ProfileSource
from shoal.providers.catalog import Catalog, build_provider
from shoal.sandbox.bounded import BoundedSandbox
from shoal.sandbox.choose import Chosen, choose_sandbox
from shoal.store.files import LocalFiles
from shoal.store.retention import RowRetention
from shoal.store.store import Store
from shoal.tools.builtin.shell import ShellBounds
from shoal.tools.builtin.subagent import subagent_tools
from shoal.tools.coverage import CoverLimits
from shoal.tools.executor import ExecutorSettings
from shoal.tools.mcp.pins import any_tool_of
from shoal.tools.output import OutputBounds
from shoal.tools.registry import SERVICE_TOOLS, standard_tools
from shoal.tools.tainted_files import MarkedFiles
from shoal.turn.budget import ESTIMATES, Meter, encoding_of, exact

if TYPE_CHECKING:
    from shoal.store.s3 import S3Settings

OLLAMA_SECONDS = 0.3
"""How long a running Ollama may take to accept a connection."""
MARGIN_DAYS = 1.0
"""What the clocks of platforms may be off, and more."""
KEPT_DAYS_MAX = 10_000.0
"""The longest that can be asked for; a date that far back still is one of a computer's."""


def turn_limits(config: Config) -> TurnLimits:
    """[turns], and how long [model] and [triggers] let a turn wait for a model."""
    return TurnLimits(
        **msgspec.structs.asdict(config.turns),
        outage_seconds=config.model.outage_seconds,
        trigger_outage_seconds=config.triggers.outage_seconds,
    )


def make_row_retention(config: Config, store: Store, clock: Clock) -> RowRetention:
    """[database] bookkeeping_days; a row that tells what was taken in stays as long as that may come again."""
    days, again = config.database.bookkeeping_days, config.context.backfill_hours / 24
    longest = max(REPEATED_SECONDS / 86_400, again, config.triggers.catch_up_seconds / 86_400) + MARGIN_DAYS
    return RowRetention(store.bookkeeping, clock, min(max(days, longest), KEPT_DAYS_MAX) if days else 0.0)


async def meter_of(config: Config) -> Meter:
    """Counts tokens as [context] wants it.

    Reads a vocabulary for half a second where they are counted exactly. Raises ShoalError when the extra is missing.
    """
    if config.context.tokenizer == "estimate":
        return ESTIMATES
    return Meter(await asyncio.to_thread(exact, encoding_of(config.model.name)))


async def make_files(config: Config, home: Home) -> Files:
    """[files]: content by digest, in the home directory or an S3-compatible store.

    Raises StoreUnavailable when that store does not take anything.
    """
    wanted = config.files
    if not wanted.url:
        return LocalFiles(home.data)
    from shoal.store.s3 import S3Files

    files = S3Files(await asyncio.to_thread(s3_settings, wanted, wanted.url))
    try:
        await asyncio.to_thread(files.keep, b"")
    except OSError as error:
        raise StoreUnavailable(f"{wanted.url} cannot be used: {error}") from error
    return files


def s3_settings(files: FilesSettings, url: str) -> "S3Settings":
    """A part of a bucket, s3://BUCKET/PREFIX, in the store of [files]. Blocks where keys have to be looked up."""
    from shoal.store.s3 import S3Settings

    where = urlsplit(url)
    return S3Settings(
        bucket=where.netloc,
        prefix=where.path.strip("/"),
        endpoint=files.endpoint,
        region=files.region,
        access_key=files.access_key.reveal(),
        secret_key=files.secret_key.reveal(),
    )


def backup_place(config: Config, home: Home) -> BackupPlace | None:
    """[backup] to; None where it is empty. Raises ConfigError for a directory that backups themselves contain."""
    where = config.backup.to
    if where.startswith("s3://"):
        from shoal.store.s3 import S3Place

        return S3Place(s3_settings(config.files, where))
    folder = (home.root / Path(where).expanduser()).resolve()
    if any(folder.is_relative_to((home.root / name).resolve()) for name in FOLDERS):
        raise ConfigError([f"backup.to: {folder} is itself part of each backup. Name a directory elsewhere."])
    return DirectoryPlace(folder) if where else None


def make_backups(
    config: Config, home: Home, settings: Settings, clock: Clock, tell: Callable[[str], Awaitable[None]]
) -> Backups:
    """[backup]."""
    wanted = config.backup
    return Backups(
        home,
        backup_place(config, home),
        clock,
        settings,
        tell,
        every_hours=wanted.every_hours,
        keep=wanted.keep,
        database_url=config.database.url.reveal,
    )


def make_folders(config: Config, home: Home, files: Files, settings: Settings) -> Folders:
    """Whether directories follow their work through the store, or are the same on every machine."""
    if not config.files.url or not config.files.workspace_sync:
        return STILL_FOLDERS
    from shoal.store.workspaces import SyncedFolders

    return SyncedFolders(files.below("folders"), settings, home, MarkedFiles(settings, home))


def executor_settings(config: Config, *, isolated: bool) -> ExecutorSettings:
    """[permissions] and [context]: bounds of tool calls."""
    return ExecutorSettings(
        ask_expires_seconds=config.permissions.ask_expires_seconds,
        page=config.web.public_url.rstrip("/"),
        ask_commands=not isolated and config.sandbox.kind == "auto",
        commands_fetch=not isolated or config.sandbox.network != "off",
        bounds=OutputBounds(config.context.artifact_chars_min, config.context.artifact_excerpt_chars),
        covers=CoverLimits(config.permissions.covered_files_max, config.permissions.covered_bytes_max),
    )


def make_sender(adapter: ports.ChatAdapter, store: Store, hub: Hub, clock: Clock, folders: Folders) -> Sender:
    """The sender of a platform, with previews where it shows them."""
    previews = Previews(adapter, hub, store.outbox, clock) if adapter.limits.has_preview else NO_PREVIEWS
    return Sender(adapter, store.outbox, clock, previews, folders)


def make_children(
    config: Config, store: Store, engine: ports.Engine, agents: AgentRegistry, models: ports.Models, clock: Clock
) -> tuple[Children, Sequence[ports.Tool]]:
    """[subagents]: who keeps subagents, and the tools that begin them."""
    children = Children(store, engine, agents, models, clock, config.subagents)
    return children, subagent_tools(children.check, children.begin, children.result)


def make_hooks(config: Config) -> dict[str, Webhook]:
    """[triggers.webhooks]."""
    found: dict[str, Webhook] = {}
    for name, one in config.triggers.webhooks.items():
        platform, _, channel = one.channel.partition(":")
        found[name] = Webhook(
            one.secret.reveal, one.template, one.thread, platform, channel, one.agent, one.repeat_seconds
        )
    return found


def agent_defaults(config: Config, model: str) -> AgentDefaults:
    """What agents have that say nothing themselves."""
    return AgentDefaults(
        agent=config.agents.default_agent,
        model=model,
        profile=config.permissions.default_profile,
        fallback=config.model.fallback,
        max_output_tokens=config.model.max_output_tokens,
        temperature=None if config.model.temperature == 1.0 else config.model.temperature,
    )


def make_profiles(config: Config) -> Profiles:
    """[permissions]: the profiles and the overrides. Raises ConfigError naming every pattern that is refused."""
    sources = {
        name: msgspec.convert(msgspec.to_builtins(profile), ProfileSource)
        for name, profile in config.permissions.profiles.items()
    }
    overrides = [msgspec.convert(msgspec.to_builtins(one), Override) for one in config.permissions.overrides]
    return Profiles(sources, overrides)


async def with_ollama(config: Config, environ: Mapping[str, str]) -> Config:
    """The configuration, and where it names no model at all, with an Ollama that runs on this machine and has one.

    It is looked for at OLLAMA_HOST, else at its usual address; nothing there costs a refused connection.
    """
    if default_model(config) != DEMO or config.model.name or "ollama" in config.providers:
        return config
    address = _ollama_address(environ)
    if not await _answers(address):
        return config
    found = ProviderSettings(kind="openai", base_url=f"{address}/v1")
    provider = build_provider("ollama", found, SystemClock(), environ)
    try:
        models = tuple(model.id for model in await provider.models())
    except (ProviderDown, ProviderRefused):
        return config
    finally:
        await provider.close()
    if not models:
        return config
    ollama = msgspec.structs.replace(found, models=models)
    return msgspec.structs.replace(config, providers={**config.providers, "ollama": ollama})


def _ollama_address(environ: Mapping[str, str]) -> str:
    given = environ.get("OLLAMA_HOST", "").rstrip("/")
    if not given:
        return KNOWN_PROVIDERS["ollama"].base_url.removesuffix("/v1")
    return given if "://" in given else f"http://{given}"


async def _answers(address: str) -> bool:
    parts = urlsplit(address)
    try:
        async with asyncio.timeout(OLLAMA_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or 11434)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True


def make_catalog(config: Config, home: Home, clock: Clock) -> Catalog:
    """The providers and models of a configuration; nothing is asked of them here. Raises ConfigError."""
    extra = _extension_providers()
    return Catalog(config.providers, home=home, clock=clock, environ=os.environ, extra=extra)


def extension_tools() -> list[ports.Tool]:
    """What installed packages offer in the group `shoal.tools`. Raises ConfigError for one that cannot be imported."""
    return [cast("ports.Tool", load_extension("shoal.tools", name)) for name in extensions("shoal.tools")]


def tool_names(config: Config) -> tuple[str, ...]:
    """The names of all tools of a Shoal with this configuration, without starting one; patterns for MCP servers'."""
    registry = standard_tools(ShellBounds(), with_hardware=config.tools.hardware)
    others = (*SERVICE_TOOLS, *(tool.spec.name for tool in extension_tools()))
    return (*registry.names(), *others, *(any_tool_of(name) for name, one in config.mcp.items() if one.enabled))


def _extension_providers() -> list[ports.Provider]:
    """What installed packages offer in the group `shoal.providers`: classes or functions that make a provider."""
    makers = [load_extension("shoal.providers", name) for name in extensions("shoal.providers")]
    return [cast("Callable[[], ports.Provider]", maker)() for maker in makers]


async def make_sandbox(config: Config) -> Chosen:
    """The sandbox of a configuration, tried out, or an extension's by its name, with the disk bounded around it.

    Raises SandboxError, ConfigError.
    """
    settings = config.sandbox
    if settings.kind in SANDBOX_KINDS:
        chosen = await choose_sandbox(settings)
    else:
        chosen = Chosen(cast("Callable[[], ports.Sandbox]", load_extension("shoal.sandboxes", settings.kind))())
    return Chosen(BoundedSandbox(chosen.sandbox, settings), chosen.note)
