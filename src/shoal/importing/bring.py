"""Imports a `Found` into a Shoal home once, and reports the outcome for each item.

Imported items are inactive: schedules are paused, skills are in a folder that is not searched, accounts are
disabled, and no agent answers until a person enables it. Files and conversations are tainted until a person has read
them (decisions 010 and 015).
"""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from shoal.agents.folder import digest_of, make_folder, read_agent, set_key, write_new
from shoal.config import Config, load_config
from shoal.config.defaults import KNOWN_PROVIDERS
from shoal.feature import FEATURES
from shoal.importing.found import (
    Found,
    FoundAccount,
    FoundAgent,
    FoundProvider,
    FoundSkill,
    FoundThread,
    counted,
)
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import ConfigError, InvalidInput
from shoal.kernel.events import AssistantSaid, Event, EventData, TurnFinished, TurnStarted, UserSaid
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, TurnId, format_ulid, make_thread_id
from shoal.kernel.memory_files import (
    ENTRY_CHARS_MAX,
    entry_line,
    is_known,
    memory_path,
    note_path,
    only_for,
    read_memory,
    shown_to,
)
from shoal.kernel.messages import Author
from shoal.kernel.records import AuditEntry
from shoal.setup.writing import write_settings, write_with_secrets
from shoal.store.projections import Projections
from shoal.store.store import Store
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.init import make_home
from shoal.text.toml_edit import Value
from shoal.tools.prompt_files import PromptFiles
from shoal.tools.tainted_files import MarkedFiles
from shoal.turn.skills import SKILL_FILE, Skill, SkillProblem, parse_skill

BRING_SECONDS_MAX = 3600.0
OFF = "skills-off"
"""Name of the folder that contains an agent's disabled skills."""
OWNER = "owner"

Became: TypeAlias = Literal["came", "off", "there", "left"]


class ImportLine(msgspec.Struct, frozen=True):
    """The outcome for one item.

    - `became`: `came` if the item was imported, `off` if it was imported but disabled, `there` if it already exists,
      or `left` if it was skipped.
    - `what`: the item.
    - `detail`: its location, or the reason.
    """

    became: Became
    what: str
    detail: str


def bring_into(
    context: CommandContext, found: Found, *, dry: bool = False, keys: bool = False, trust: bool = False
) -> list[ImportLine]:
    """Import a `Found` into the home directory of a command. If the directory does not exist, create it.

    - `dry`: write nothing.
    - `keys`: also import secrets.
    - `trust`: do not taint the imported items, because a person has read them.

    Raises HomeLocked, ConfigError, StoreError, OSError.
    """

    async def bring(store: Store) -> list[ImportLine]:
        return await Bringing(found, context.home, store, context.config(), dry=dry, keys=keys, trust=trust).run()

    if not dry:
        make_home(context.home)
        return context.write(bring)
    if context.root.is_dir():
        return context.read(bring)
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        return CommandContext(Path(folder)).read(bring)


class Bringing:
    """A single import. `bring_into` describes the options."""

    def __init__(
        self, found: Found, home: Home, store: Store, config: Config, *, dry: bool, keys: bool, trust: bool
    ) -> None:
        self.lines: list[ImportLine] = []
        self._found = found
        self._home = home
        self._store = store
        self._config = config
        self._dry = dry
        self._keys = keys
        self._trust = trust
        self._product = found.title or found.product
        self._source = "" if trust else f"an import from {self._product}"
        self._settings: dict[str, Value] = {}
        self._secrets: dict[str, str] = {}

    async def run(self) -> list[ImportLine]:
        self._providers(self._found.providers)
        self._accounts(self._found.accounts)
        if (self._settings or self._secrets) and not self._dry:
            write_with_secrets(self._home, self._settings, self._secrets)
            self._config = load_config(self._home.root, os.environ)
        marks = MarkedFiles(self._store.settings, self._home)
        for agent in self._found.agents:
            await self._memory(agent, marks)
        async with AsyncExitStack() as stack:
            if not self._dry:
                await stack.enter_async_context(marks.during([self._home.root], self._source, BRING_SECONDS_MAX))
            for agent in self._found.agents:
                await self._agent(agent)
        self._models()
        for thread in self._found.threads:
            await self._thread(thread)
        await self._schedules()
        for item in self._found.left:
            self._report("left", item.what, item.why)
        if not self._dry:
            detail = ", ".join(
                f"{sum(line.became == became for line in self.lines)} {became}" for became in ("came", "off")
            )
            entry = AuditEntry("import", f"import {self._found.product}", "allow", user="web:owner", detail=detail)
            await self._store.audit.record("system", [entry])
        return self.lines

    def _report(self, became: Became, what: str, detail: str) -> None:
        texts = (text.replace("\0", "").encode("utf-8", "replace").decode() for text in (what, detail))
        self.lines.append(ImportLine(became, *texts))

    # ---- agents ----

    async def _agent(self, agent: FoundAgent) -> None:
        folder, different = self._home.agent(agent.name), list[str]()
        is_new, imported = not folder.exists(), list[str]()
        files = {**agent.files, **{f"docs/{name}": text for name, text in agent.documents.items()}}
        for name, text in files.items():
            content = f"{text.strip()}\n".encode()
            if (folder / name).exists():
                different += [name] if (folder / name).read_bytes() != content else []
                continue
            imported.append(name)
            if not self._dry:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                write_new(self._home, folder / name, content, [])
        if not self._dry:
            make_folder(self._home, agent.name)
            if is_new and agent.system_prompt:
                set_key(folder, "system_prompt", agent.system_prompt)
            await self._store.registry.put(agent.name, digest_of(folder))
        where, what = f"agents/{agent.name}", f"agent {_titled(agent)}"
        if is_new or imported:
            prompt = "its system prompt" if agent.system_prompt else "an empty persona"
            self._report("came", what, f"{where}: {', '.join(imported) or prompt}")
        else:
            self._report("there", what, where)
        if different:
            self._report(
                "left",
                f"agent {agent.name}: {', '.join(different)}",
                ("a different file already exists and was not replaced"),
            )
        for skill in agent.skills:
            off, on = folder / OFF / skill.name, folder / "skills" / skill.name
            what = f"skill {_titled(skill)}"
            if off.exists() or on.exists():
                self._report("there", what, f"{where}/{'skills' if on.exists() else OFF}/{skill.name}")
                continue
            text = skill.files.get(SKILL_FILE, b"").decode("utf-8", "replace")
            parsed = parse_skill(on / SKILL_FILE, text, "agent")
            is_on = self._trust and isinstance(parsed, Skill)
            if not self._dry:
                for name, data in skill.files.items():
                    path = (on if is_on else off) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_new(self._home, path, data, [])
            if is_on:
                self._report("came", what, f"{where}/skills/{skill.name}")
                continue
            wrong = f" (correct the skill first: {parsed.text})" if isinstance(parsed, SkillProblem) else ""
            todo = f"mv {off} {on}" if on.parent.exists() else f"mkdir -p {on.parent} && mv {off} {on}"
            self._report("off", what, f"read the skill, then run: {todo}{wrong}")

    async def _memory(self, agent: FoundAgent, marks: MarkedFiles) -> None:
        """Import an agent's memory as private to the owner, because the owner was the only user of the other
        product.
        """
        if "memory" not in FEATURES:
            if agent.memory or agent.notes:
                self._report("left", f"{agent.name}: memory", "memory is not installed here")
            return
        from shoal.features.memory.book import MemoryBook
        from shoal.features.memory.files import MemoryEdit

        book = MemoryBook(self._home, self._store, SystemClock(), PromptFiles(marks, self._home))
        files = {memory_path(self._home, "global", ThreadId("")): agent.memory}
        files |= {note_path(self._home, day): entries for day, entries in sorted(agent.notes.items())}
        for path, entries in files.items():
            known = shown_to(read_memory(path), OWNER)
            pieces = dict.fromkeys(entry_line(" ".join(piece.split())) for entry in entries for piece in _pieces(entry))
            new = tuple(only_for(line, OWNER) for line in pieces if not is_known(known, line))
            what = f"{agent.name}: {'memory' if path.name == 'MEMORY.md' else f'note of {path.stem}'}"
            name = path.relative_to(self._home.root)
            if not new:
                if entries:
                    self._report("there", what, str(name))
                continue
            edit = MemoryEdit(path, added=new, person=OWNER, changed_by="web:owner", tainted_by=self._source)
            try:
                if not self._dry:
                    await book.amend(edit)
            except InvalidInput as error:
                self._report("left", what, str(error))
                continue
            self._report("came", what, f"{counted(len(new), 'line', 'lines')} in {name}, only for you")

    # ---- settings ----

    def _providers(self, providers: Sequence[FoundProvider]) -> None:
        for provider in providers:
            table, what = f"providers.{provider.name}", f"provider {provider.name}"
            if provider.name in self._config.providers:
                self._report("there", what, "it is already configured")
                continue
            if (provider.key and not self._keys) or not (provider.key or provider.base_url):
                self._report("left", what, "it needs a key: use --keys, or run `shoal setup model`")
                continue
            values: dict[str, Value] = {f"{table}.kind": provider.kind, f"{table}.base_url": provider.base_url}
            if provider.name in KNOWN_PROVIDERS:
                values[f"{table}.kind"] = ""
            secrets = {f"{table}.api_key": provider.key} if provider.key else {}
            if self._adds(what, {key: value for key, value in values.items() if value}, secrets):
                self._report("came", what, f"[{table}] in shoal.toml{', its key in secrets/' if provider.key else ''}")

    def _accounts(self, accounts: Sequence[FoundAccount]) -> None:
        for account in accounts:
            table, what = f"platforms.{account.platform}", f"channel {account.platform}"
            if self._config.platforms.of(account.platform):
                self._report("there", what, "an account is already configured and was not changed")
                continue
            values: dict[str, Value] = {f"{table}.enabled": False}
            values |= {f"{table}.{key}": value for key, value in account.settings.items()}
            if account.allow:
                values[f"{table}.allow"] = account.allow
            secrets = {f"{table}.{key}": value for key, value in account.secrets.items()} if self._keys else {}
            if self._adds(what, values, secrets):
                token = "its token in secrets/" if secrets else "without its token (--keys imports it)"
                token = token if account.secrets else "without a token (none found)"
                people = f"{counted(len(account.allow), 'person', 'people')} may write"
                todo = f"stop {self._product}, then run `shoal setup chat`, which also identifies you as the owner"
                self._report("off", what, f"[{table}] in shoal.toml, {token}, {people}; {todo}")

    def _adds(self, what: str, values: dict[str, Value], secrets: dict[str, str]) -> bool:
        """Collect settings and return True if all of them are valid and new. Otherwise, report the item as skipped."""
        if (values | secrets).keys() & (self._settings | self._secrets).keys():
            self._report("left", what, "a setting with this name already exists")
            return False
        try:
            load_config(self._home.root, os.environ, {**self._settings, **self._secrets, **values, **secrets})
        except ConfigError as error:
            self._report("left", what, error.problems[0])
            return False
        self._settings |= values
        self._secrets |= secrets
        return True

    def _models(self) -> None:
        wanted, have = self._found.model, {*self._config.providers}
        have |= {
            key.split(".")[1] for key in (*self._settings, *self._secrets) if key.startswith("providers.")
        }  # a dry run does not write these providers to the configuration
        if wanted and self._config.model.name:
            became: Became = "there" if wanted == self._config.model.name else "left"
            self._report(
                became, f"model {wanted}", (f"{self._config.model.name} is already configured and was not changed")
            )
        elif wanted and wanted.split("/")[0] in have:
            fallback = [model for model in self._found.fallback if model.split("/")[0] in have]
            values: dict[str, Value] = {"model.name": wanted}
            if fallback and not self._config.model.fallback:
                values["model.fallback"] = fallback
            try:
                if not self._dry:
                    write_settings(self._home, values)
                self._report("came", f"model {wanted}", "model.name in shoal.toml")
            except ConfigError as error:
                self._report("left", f"model {wanted}", error.problems[0])
        elif wanted:
            self._report("left", f"model {wanted}", "its provider is not configured here; run `shoal setup model`")
        for agent in self._found.agents:
            if not agent.model or agent.model == wanted:
                continue
            folder = self._home.agent(agent.name)
            if folder.exists() and read_agent(folder).model:
                continue
            if agent.model.split("/")[0] in have:
                if not self._dry:
                    set_key(folder, "model", agent.model)
                self._report("came", f"model {agent.model}", f"agents/{agent.name}/agent.toml")
            else:
                todo = f"run `shoal agents config {agent.name} model PROVIDER/MODEL`"
                self._report(
                    "left", f"model {agent.model} of {agent.name}", f"its provider is not configured here; {todo}"
                )

    # ---- conversations and schedules ----

    async def _thread(self, found: FoundThread) -> None:
        key = hashlib.sha256(f"{found.agent}\0{found.key}".encode()).hexdigest()[:26]
        thread = make_thread_id("web", self._found.product, key)
        events = list(_events(found, thread, self._source))
        title = f"{' '.join(found.title.split())[:50]} (from {self._product})"
        first, last = found.messages[0].at, found.messages[-1].at
        what = f"conversation {' '.join(found.title.split())[:50]}"
        detail = f"{thread}: {counted(len(found.messages), 'message', 'messages')}, {first:%Y-%m-%d} to {last:%Y-%m-%d}"
        if self._dry:
            is_new = await self._store.journal.thread(thread) is None
        else:
            is_new = await self._store.journal.add_thread(thread, found.agent, title, events)
            if is_new:
                Projections(self._home).rebuild(thread, await self._store.journal.events(thread), {})
        self._report("came" if is_new else "there", what, detail)

    async def _schedules(self) -> None:
        if "triggers" not in FEATURES:
            for one in self._found.schedules:
                self._report("left", f"schedule {one.name}", "triggers are not installed here")
            return
        from shoal.features.triggers.records import NewTrigger
        from shoal.features.triggers.schedules import first_time
        from shoal.features.triggers.store import TriggerStore

        now, triggers = datetime.now(UTC), TriggerStore(self._store.driver, SystemClock())
        known = {(trigger.spec.name, trigger.spec.text) for trigger in await triggers.all()}
        for schedule in self._found.schedules:
            name, what = f"{schedule.name} ({self._found.product})", f"schedule {schedule.name}"
            key = hashlib.sha256(f"{schedule.name}\0{schedule.text}".encode()).hexdigest()[:16]
            spec = NewTrigger(
                schedule.kind,
                schedule.schedule,
                schedule.text,
                Author(OWNER, trusted=self._trust),
                self._source,
                thread=make_thread_id("web", self._found.product, f"schedule-{key}"),
                timezone=schedule.timezone,
                agent=schedule.agent,
                name=name,
            )
            if (name, schedule.text) in known:
                self._report("there", what, "see `shoal triggers list`")
                continue
            try:
                at, identity = first_time(spec, now), ""
                if not self._dry:
                    identity = (await triggers.add(spec, at, rests=True)).id
            except InvalidInput as error:
                self._report("left", what, str(error))
                continue
            destination = (
                f" It reported to {schedule.reports_to} before. In Shoal, its answers appear on the page."
                if schedule.reports_to
                else ""
            )
            self._report(
                "off", what, (f"paused; run `shoal triggers resume {identity or 'ID'}` to start it.{destination}")
            )


def _titled(item: FoundAgent | FoundSkill) -> str:
    return item.name if item.title.isascii() else f"{item.name} ({item.title})"


def _pieces(entry: str) -> list[str]:
    """Split an entry into pieces that each fit on one line of a memory file."""
    words = " ".join(entry.split()).removeprefix("- ").removeprefix("* ").strip()
    size = ENTRY_CHARS_MAX - 10
    return [words[at : at + size] for at in range(0, len(words), size)]


def _events(thread_found: FoundThread, thread: ThreadId, source: str) -> "Sequence[Event]":
    """Convert a conversation to the events of its turns.

    Each turn begins with a person's message and ends with the last answer before the next message.
    """
    events: list[Event] = []
    turn, answer, steps = TurnId(""), "", 0
    person = Author(OWNER, "imported", trusted=not source)

    def note(at: datetime, data: EventData) -> None:
        events.append(Event(0, thread, turn, at, data))

    def close(at: datetime) -> None:
        if turn:
            note(at, TurnFinished("done" if answer else "aborted", answer, steps, tainted_by=source))

    for number, message in enumerate(thread_found.messages):
        opens = message.role == "user" or not turn
        if opens:
            close(thread_found.messages[number - 1].at if number else message.at)
            digest = hashlib.sha256(f"{thread}\0{number}".encode()).digest()[:10]
            turn, answer, steps = TurnId(format_ulid(int(message.at.timestamp() * 1000), digest)), "", 0
            text = message.text if message.role == "user" else "(The agent wrote on its own.)"
            origin = "person" if message.role == "user" else "system"
            note(message.at, UserSaid(text, person, f"import:{number}", origin, direct=True, tainted_by=source))
            note(message.at, TurnStarted(thread_found.agent, ""))
        if message.role == "assistant":
            note(message.at, AssistantSaid(message.text, tainted_by=source))
            answer, steps = message.text, steps + 1
    close(thread_found.messages[-1].at)
    return events
