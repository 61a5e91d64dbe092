"""Lifecycle of agents in the file system and the database: create, bind to channels, configure and destroy.

The files in `agents/NAME/` define an agent. The database lists the agents and their channels. Mismatches between the
two, and lost channels, are reported at startup and never repaired silently.
"""

import asyncio
import contextlib
import difflib
import hashlib
import logging
import os
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.agents.folder import (
    FILE,
    KEYS,
    checked_name,
    digest_of,
    make_folder,
    read_agent,
    read_shared,
    remove_folder,
    set_key,
    template_files,
)
from shoal.agents.registry import AgentRegistry, ChannelBindings, ChannelChoices, place_of
from shoal.files.deep_folders import walk
from shoal.kernel import lazy_re
from shoal.kernel.agents import LISTENS, AgentSpec, Binding, Listen
from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, InvalidInput, NotFound, PlatformError
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.messages import Abort, Author, Inbound, Receipt
from shoal.kernel.permissions import Asker
from shoal.kernel.ports import ChannelHost, ChatAdapter
from shoal.kernel.records import AuditEntry
from shoal.kernel.untrusted import UNREADABLE
from shoal.store.store import Store
from shoal.tools.prompt_files import PromptFiles
from shoal.turn.prompt import SystemChange

log = logging.getLogger(__name__)

STOP_SECONDS_MAX = 30.0
"""Maximum time to wait for an agent's running turns to end before the agent is destroyed."""
LOOK_SECONDS = 0.2
FILES_COUNTED_MAX = 10_000
_CHOICE = lazy_re.compile(r"\s*([\w.]+)=(\S*)(.*)", re.S)
LISTS = ("tools", "fallback")


class EditCheck(NamedTuple):
    """A check of an agent's proposed change to itself.

    - `applies`: returns True if an agent's directory contains anything to test.
    - `run`: returns one line for the person who approves the change, and never raises. Its arguments are the changed
      agent, the agent's current directory, the requester, and the change to the agent's instructions.
    """

    applies: Callable[[Path], bool]
    run: Callable[[AgentSpec, Path, Asker, SystemChange | None], Awaitable[str]]


class Checks(msgspec.Struct, frozen=True):
    """Checks the names in an agent's settings. `model` and `profile` raise InvalidInput for an unknown name."""

    model: Callable[[str], None]
    profile: Callable[[str], None]
    tools: Callable[[], Collection[str]]

    def check(self, key: str, value: str) -> None:
        """Check the names in a setting's value. Raises InvalidInput for an unknown name.

        The type of the value is checked when it is written.
        """
        match key:
            case "model":
                self.model(value)
            case "profile":
                self.profile(value)
            case "fallback":
                for name in _names_in(value):
                    self.model(name)
            case "tools":
                for name in _names_in(value):
                    self.tool(name)
            case _:
                pass

    def tool(self, name: str) -> None:
        """Raise InvalidInput if no tool matches the name. Names of registered tools may contain `*`."""
        known = sorted(self.tools())
        if not any(fnmatchcase(name, pattern) for pattern in known):
            near = difflib.get_close_matches(name.partition(":")[0], known, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Tools: {', '.join(known)}."
            raise InvalidInput(f"No tool named {name[:80]!r}. {hint}")


class AgentCard(msgspec.Struct, frozen=True):
    """A list entry for an agent."""

    name: str
    spec: AgentSpec | None
    """Settings from the agent's file, or None if the file is invalid. `error` then contains the reason."""
    places: Mapping[str, Listen]
    """Channels bound to the agent, with the messages that the agent answers there."""
    at_work: int
    is_default: bool
    error: str = ""


class DoomedAgent(msgspec.Struct, frozen=True):
    """The files, channels and turns that deleting an agent would remove or stop."""

    name: str
    files: int
    is_more: bool
    """True if only some of the files were counted."""
    size_bytes: int
    places: tuple[str, ...]
    at_work: int
    digest: str
    """Digest of the agent's name, files and channels. It changes when any of them changes."""


class AgentLifecycle(msgspec.Struct, eq=False):
    """Creates, binds, configures and destroys agents. `by` is the person for the audit log, as PLATFORM:USER."""

    home: Home
    store: Store
    agents: AgentRegistry
    clock: Clock
    checks: Checks
    adapters: Mapping[str, ChatAdapter | None]
    files: PromptFiles
    send: Callable[[Inbound], Awaitable[Receipt]] | None

    async def cards(self, within: str = "") -> list[AgentCard]:
        """Return all agents. `at_work` counts the running turns of threads whose ids begin with `within`.

        Raises StoreError.
        """
        bindings = await self.store.registry.bindings()
        works = await self.store.registry.at_work(limit=1000, within=within)
        cards: list[AgentCard] = []
        for name in self.agents.names():
            places: dict[str, Listen] = {binding.place: binding.listen for binding in bindings if binding.agent == name}
            is_default = name == self.agents.defaults.agent
            at_work = sum(bool(work.turn) and work.agent == name for work in works)
            try:
                cards.append(AgentCard(name, self.agents.spec(name), places, at_work, is_default))
            except InvalidInput as error:
                cards.append(AgentCard(name, None, places, at_work, is_default, str(error)))
        return cards

    async def card(self, name: str, within: str = "") -> AgentCard:
        """Return one entry of `cards`. Raises NotFound and StoreError."""
        self._existing(name)
        return next(card for card in await self.cards(within) if card.name == name)

    async def doomed(self, name: str) -> DoomedAgent:
        """Count the files, channels and turns that `destroy` would remove or stop.

        Raises NotFound, Conflict for the default agent, and StoreError.
        """
        await self._check_destroyable(name)
        folder = self.home.agent(name)
        files, size_bytes, digest = await asyncio.to_thread(_contents, folder)
        places = sorted(binding.place for binding in await self.store.registry.bindings() if binding.agent == name)
        at_work = sum(bool(work.turn) for work in await self.store.registry.at_work(name))
        digest = hashlib.sha256(f"{name} {digest} {' '.join(places)}".encode()).hexdigest()
        is_more = files > FILES_COUNTED_MAX
        return DoomedAgent(name, min(files, FILES_COUNTED_MAX), is_more, size_bytes, tuple(places), at_work, digest)

    async def create(self, name: str, settings: Mapping[str, str], by: str) -> None:
        """Create `agents/NAME/` from the template.

        Raises InvalidInput, Conflict if the agent exists, StoreError and OSError.
        """
        if self.agents.exists(checked_name(name)) and self.home.agent(name).exists():
            raise Conflict(
                f"The agent {name} already exists. Destroy the existing agent first, or choose another name."
            )
        settings = {key: listed(key, value) for key, value in settings.items()}
        for key, value in settings.items():
            self.checks.check(key, value)
        folder = self.home.agent(name)
        try:
            async with self.files.marking(await self.files.source_of(*template_files(self.home))):
                await asyncio.to_thread(make_folder, self.home, name)
                for key, value in settings.items():
                    await asyncio.to_thread(set_key, folder, key, value)
        except InvalidInput:
            await asyncio.to_thread(remove_folder, self.home, name, self.clock.now(), keep=False)
            raise
        await self.store.registry.put(name, digest_of(folder))
        await self._record("create", name, by)

    async def give_channel(self, name: str, beside: ThreadId, by: str, listen: Listen = "all") -> Binding | str:
        """Create a channel next to `beside` and bind it to the agent.

        If the platform cannot create it, return the reason instead.
        """
        address = thread_address(beside)
        platform, channel = address.platform, address.channel
        adapter = self.adapters.get(platform)
        binds = f"`/agent bind {name}{'' if listen == 'all' else f' listen={listen}'}`"
        if not isinstance(adapter, ChannelHost):
            title = platform.partition(".")[0].replace("_", " ").title()
            return f"I cannot create channels on {title}. Write {binds} in a channel to make the agent answer there."
        try:
            made = await adapter.create_channel(name, channel)
        except PlatformError as error:
            log.warning("channel creation failed", extra={"platform": platform, "agent": name, "why": str(error)})
            return f"I could not create the channel: {error} To use another channel, write {binds} there."
        return await self.bind(name, make_thread_id(platform, made, "0"), by, listen, made=True)

    async def bind(
        self, name: str, thread: ThreadId, by: str, listen: Listen = "all", *, made: bool = False
    ) -> Binding:
        """Bind the thread's channel to the agent, starting with the next message.

        `listen` selects the messages that the agent answers there. Raises NotFound, InvalidInput for an unknown
        platform, and StoreError.
        """
        self._existing(name)
        address = thread_address(thread)
        if address.platform not in self.adapters:
            there = f"Platforms: {', '.join(sorted(self.adapters))}." if self.adapters else "No platform is set up yet."
            raise InvalidInput(
                f"No platform named {address.platform[:80]!r} is connected. {there} "
                "To use another account, set it up and write "
                "PLATFORM.ACCOUNT."
            )
        binding = Binding(address.platform, address.channel, name, by, self.clock.now(), made, listen)
        await self._bindings.bind(binding)
        await self._record("bind", name, by, f"{binding.place} listen={listen}")
        return binding

    async def unbind(self, thread: ThreadId, by: str) -> None:
        """Remove the binding of the thread's channel. The account's agent then answers there.

        Raises NotFound if the channel has no binding.
        """
        if not await self._bindings.unbind(thread):
            raise NotFound(f"{place_of(thread)} is not bound to an agent.")
        await self._record("unbind", "", by, place_of(thread))

    async def configure(self, name: str, key: str, value: str, by: str) -> AgentSpec:
        """Set a key of the agent's file. An empty value removes the key. Takes effect on the next turn.

        Raises NotFound, InvalidInput with the allowed values, and OSError.
        """
        self._existing(name)
        key = key_named(key)
        value = listed(key, value)
        if value:
            self.checks.check(key, value)
        folder = self.home.agent(name)
        before = digest_of(folder)
        async with self.files.marking(await self.files.source_of(folder / FILE)):
            await asyncio.to_thread(set_key, folder, key, value)
        await self.store.registry.put(name, digest_of(folder))
        await self._record(f"config {key}", name, by, f"{before[:12]} → {digest_of(folder)[:12]}")
        return self.agents.spec(name)

    async def destroy(self, name: str, by: str, *, keep: bool) -> str:
        """Stop the agent's turns and remove its bindings and directory. Its journals remain.

        Returns the new path of the agent's files with `keep`, otherwise an empty string. Raises NotFound, Conflict for
        the default agent or if the agent's turns do not end, StoreError and OSError.
        """
        await self._check_destroyable(name)
        await self.store.registry.retire(name)
        self._bindings.changed()
        if self.send is not None:  # If `send` is None, no turns are running.
            until = self.clock.monotonic() + STOP_SECONDS_MAX
            while works := await self.store.registry.at_work(name):
                if self.clock.monotonic() > until:
                    raise Conflict(f"{name} still has running turns ({works[0].thread}). Try again in a moment.")
                for work in works:
                    await self.send(Abort(work.thread, Author("owner", trusted=False), all_queued=True))
                await self.clock.sleep(LOOK_SECONDS)
        where = ""
        if self.home.agent(name).is_dir():
            removed = await asyncio.to_thread(remove_folder, self.home, name, self.clock.now(), keep=keep)
            where = str(removed.relative_to(self.home.root)) if keep else ""
        await self._record("destroy", name, by, where)
        return where

    async def choose(self, place: str, choices: ChannelChoices, by: str) -> None:
        """Set the choices for PLATFORM, PLATFORM@SERVER or PLATFORM:CHANNEL. Raises InvalidInput and StoreError."""
        if choices.model:
            self.checks.model(choices.model)
        if choices.profile:
            self.checks.profile(choices.profile)
        await self._bindings.choose(place, choices)
        await self._record("settings", "", by, f"{place} model={choices.model} profile={choices.profile}")

    async def reconcile(self) -> list[str]:
        """Compare directories with the database. Record new agents, and return one sentence per mismatch."""
        rows = {row.name: row for row in await self.store.registry.all()}
        bindings = await self.store.registry.bindings()
        present = [name for name in self.agents.names() if self.home.agent(name).is_dir()]
        for name in present:
            row, digest = rows.get(name), digest_of(self.home.agent(name))
            if row is None or (row.state, row.digest) != ("active", digest):
                await self.store.registry.put(name, digest)
        notices = [
            f"The agent {name} is known, but agents/{name}/ is missing. "
            f"Restore it, or run `shoal agents destroy {name}`."
            for name, row in rows.items()
            if row.state == "active" and name not in present
        ]
        notices += [
            f"{binding.place} is bound to the agent {binding.agent}, which does not exist. Bind it to another agent, "
            "or "
            "unbind it."
            for binding in bindings
            if not self.agents.exists(binding.agent)
        ]
        notices += [
            f"The account {account} uses the agent {name!r}, which does not exist. The default agent answers there. "
            f"Create the agent with `shoal agents create {name}`, or correct "
            f"platforms.{account.partition('.')[0]}.agent."
            for account, name in self._bindings.accounts.items()
            if not self.agents.exists(name)
        ]
        for name in ("", *present):
            try:
                read_agent(self.home.agent(name)) if name else read_shared(self.home)
            except InvalidInput as error:
                notices.append(str(error))
        for line in notices:
            log.warning("%s", line)
        return notices

    async def lost_channels(self) -> list[str]:
        """Return one sentence for each bound channel that no longer exists on its platform.

        Raises PlatformError if the platform does not respond, and StoreError.
        """
        notices: list[str] = []
        for binding in await self.store.registry.bindings():
            adapter = self.adapters.get(binding.platform)
            if isinstance(adapter, ChannelHost) and not await adapter.has_channel(binding.channel):
                notices.append(
                    f"{binding.agent}'s channel {binding.place} no longer exists, or I cannot write there. "
                    f"Run `shoal agents unbind {binding.place}` to remove the binding."
                )
        return notices

    @property
    def _bindings(self) -> ChannelBindings:
        assert self.agents.bindings is not None, "the app provides the bindings"
        return self.agents.bindings

    async def _check_destroyable(self, name: str) -> None:
        rows = {row.name for row in await self.store.registry.all() if row.state == "active"}
        if name not in rows:
            self._existing(name)
        if name == self.agents.defaults.agent:
            raise Conflict(f"{name} is the default agent. Set agents.default_agent to another agent first.")

    def _existing(self, name: str) -> None:
        known = self.agents.names()
        if name not in known:
            raise NotFound(f"No agent named {name[:80]!r}. Agents: {', '.join(known)}.")

    async def _record(self, what: str, agent: str, by: str, detail: str = "") -> None:
        entry = AuditEntry("agent", f"agent:{what}", "allow", user=by, agent=agent, detail=detail)
        await self.store.audit.record("agents", [entry])


def _contents(folder: Path) -> tuple[int, int, str]:
    """Return the number of files below a folder, their total size in bytes, and a digest of their names, sizes and
    times.

    Stops after FILES_COUNTED_MAX + 1 files. Skips `.git`.
    """
    digest, count, size_bytes = hashlib.sha256(), 0, 0
    for place, folders, names in walk(folder):
        folders[:] = sorted(folder for folder in folders if folder != ".git")
        for name in sorted(names):
            path = os.path.join(place, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                count, size_bytes = count + 1, size_bytes + status.st_size
                digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
            if count > FILES_COUNTED_MAX:
                return count, size_bytes, digest.hexdigest()
    return count, size_bytes, digest.hexdigest()


def choices_in(text: str) -> tuple[str, Listen, dict[str, str], str]:
    """Parse an agent's name and the KEY=VALUE words after it.

    Returns the name, `listen`, the other settings, and the remaining text. Raises InvalidInput for an unknown key.
    """
    name, _, rest = text.partition(" ")
    listen: Listen = "all"
    chosen: dict[str, str] = {}
    while choice := _CHOICE.match(rest):
        key, value, rest = choice[1].lower(), choice[2], choice[3]
        if key == "listen":
            known: dict[str, Listen] = {listen: listen for listen in LISTENS}
            if value.lower() not in known:
                raise InvalidInput(f"`listen=` takes {', '.join(LISTENS[:-1])} or {LISTENS[-1]}.")
            listen = known[value.lower()]
        elif key_named(key) in KEYS:
            chosen[key_named(key)] = value
        else:
            raise InvalidInput(f"`{key[:40]}` is not a setting. Settings: listen, {', '.join(KEYS)}.")
    return name, listen, chosen, rest.strip()


def key_named(name: str) -> str:
    """Return the agent.toml key for a name in /settings, where the profile is called "permissions"."""
    return "profile" if name == "permissions" else name


def listed(key: str, value: str) -> str:
    """Convert comma-separated names to a list if the key expects one. Return values for other keys unchanged."""
    if key not in LISTS or not value or value.startswith("["):
        return value
    return msgspec.json.encode([part.strip() for part in value.split(",") if part.strip()]).decode()


def _names_in(value: str) -> tuple[str, ...]:
    """Return the names of a TOML or JSON list. Other values give an empty tuple and are rejected when they are set."""
    try:
        return msgspec.toml.decode(f"names = {value}".encode(), type=dict[str, tuple[str, ...]])["names"]
    except UNREADABLE:
        return ()
