"""/memory: list, correct and forget what the agent remembers.

The command works like the tool `remember`, without a model call. It shows the memory that is in the agent's prompt for
this conversation. Changes follow the same rules as `remember`, are audited and can be undone.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from shoal.agents.registry import AgentRegistry
from shoal.features.memory.book import LOOKED_MAX, MemoryBook
from shoal.features.memory.files import (
    EVERYBODYS,
    MemoryEntry,
    action_on,
    edits_of,
    entries_saying,
    memory_entries,
)
from shoal.features.memory.store import MemoryChange
from shoal.kernel import lazy_re
from shoal.kernel.agents import AgentSpec
from shoal.kernel.commands import ChatCommand, CommandRequest, CommandSpec
from shoal.kernel.errors import Forbidden, InvalidInput, NotFound
from shoal.kernel.files import in_thread
from shoal.kernel.ids import ThreadId
from shoal.kernel.memory_files import MEMORY_SCOPES, entry_key, entry_line, memory_path
from shoal.kernel.permissions import Action, Asker
from shoal.kernel.records import AuditEntry
from shoal.permissions.access import Links
from shoal.permissions.profiles import Profile, Profiles, decide_all
from shoal.store.store import Store
from shoal.threads.commands import agent_here

if TYPE_CHECKING:
    from shoal.services import Services

ENTRIES_LISTED_MAX = 20
ENTRY_SHOWN_CHARS = 200
MEMORY_USAGE = (
    "`/memory [WORDS]`, `/memory forget ID`, `/memory amend ID TEXT`, `/memory undo`. Instead of ID you can write the "
    "entry's words, with `->` before TEXT"
)
_ID = lazy_re.compile(r"`?([0-9a-f]{6})`?")
_ARROW = lazy_re.compile(r"(?<!\s)\s++(?:->|=>|→)\s+")


MEMORY = CommandSpec(
    "memory", "show, correct or forget what I remember", "[WORDS|forget ID|amend ID TEXT|undo]", number=19
)


def chat_commands(services: "Services") -> list[ChatCommand]:
    agent_of = partial(agent_here, services[Store], services[AgentRegistry])
    book, links = services[MemoryBook], services[Links]
    memory = MemoryCommands(book, services[Store], links, agent_of, services[Profiles].of_agent)
    return [ChatCommand(MEMORY, memory.memory)]


class MemoryCommands(msgspec.Struct, frozen=True, eq=False):
    """Chat command /memory. `agent_of` returns the agent of a thread. `profile_of` returns the permission profile for a
    person.
    """

    book: MemoryBook
    store: Store
    links: Links
    agent_of: Callable[[ThreadId], Awaitable[AgentSpec]]
    profile_of: Callable[[AgentSpec, Asker], Profile]

    async def memory(self, asked: CommandRequest) -> str:
        person = self.links.audience(asked.asker, asked.author, asked.thread).person
        known = await in_thread(lambda: memory_entries(self.book.home, asked.thread, person))
        verb, _, rest = asked.argument.partition(" ")
        match verb.lower(), rest.strip():
            case "help", "":
                return f"Usage: {MEMORY_USAGE}."
            case "forget", wanted:
                return await self._change(asked, _matching_entries(known, wanted), "")
            case "amend", wanted:
                entry, _, new = wanted.partition(" ")
                if _ID.fullmatch(entry):
                    new = new.strip().removeprefix("-> ")
                else:
                    entry, new = (*_ARROW.split(wanted, maxsplit=1), "")[:2]
                if not new.strip():
                    usage = "`/memory amend ID TEXT`, or `/memory amend WORDS -> TEXT`"
                    raise InvalidInput(f"Enter the new text: {usage}.")
                return await self._change(
                    asked, _matching_entries(known, entry), entry_line(" ".join(new.split())).removeprefix("- ")
                )
            case "undo", "":
                return await self._undo(asked, person)
            case "list", words:
                return _listed(known, words)
            case _:
                return _listed(known, asked.argument)

    async def _change(self, asked: CommandRequest, entries: Sequence[MemoryEntry], new: str) -> str:
        asker, agent = asked.asker, await self.agent_of(asked.thread)
        if not asked.author.trusted:
            raise Forbidden("Only people listed by name in the access rules can change what I remember.")
        actions = tuple(dict.fromkeys(Action(action_on(entry, new)) for entry in entries))
        decision, rulings = decide_all(self.profile_of(agent, asker), actions)
        checks = [
            AuditEntry("check", ruling.action, ruling.decision, ruling.rule, asker.user, agent.name, detail="/memory")
            for ruling in rulings
        ]
        await self.store.audit.record(asked.thread, checks)
        if decision == "deny":  # the command itself counts as approval, so `ask` is enough
            raise Forbidden(f"{agent.name}'s permissions deny this change: {rulings[0].action}")
        for edit in edits_of(entries, new):
            await self.book.amend(
                msgspec.structs.replace(edit, changed_by=asker.identity, agent=agent.name, thread=asked.thread)
            )
        where = ", ".join(dict.fromkeys(entry.label for entry in entries))
        old = _shown(entries[0].words)
        reply = f"Corrected ({where}): {old}\nNew text: {_shown(new)}" if new else f"Forgotten ({where}): {old}"
        return f"{reply}\n`/memory undo` undoes the change."

    async def _undo(self, asked: CommandRequest, person: str) -> str:
        """Undo the person's last change. Ignores changes that they could not make in this conversation."""
        if not asked.author.trusted:
            raise Forbidden("Only people listed by name in the access rules can change what I remember.")
        home, who = self.book.home, asked.asker.identities
        whose = {memory_path(home, scope, asked.thread): person for scope in MEMORY_SCOPES}
        whose[memory_path(home, "channel", asked.thread)] = ""

        def is_theirs(change: MemoryChange) -> bool:
            path = home.root / change.file
            changeable = whose.get(path, person if path.is_relative_to(home.data / "memory") else None)
            return not change.undone and change.changed_by in who and change.person == changeable

        change = next((entry for entry in await self.book.history.newest(LOOKED_MAX) if is_theirs(entry)), None)
        if change is None:
            raise NotFound("You have made no changes here that you can undo.")
        await self.book.undo(change.id, asked.asker.identity)
        back = "; ".join(_shown(line.partition("<!--")[0]).removeprefix("- ") for line in change.removed)
        return f"Undone. Restored text: {back}" if back else "Undone."


def _matching_entries(known: Sequence[MemoryEntry], wanted: str) -> list[MemoryEntry]:
    """Find changeable entries by id or by words. Raises InvalidInput if entries with different texts match."""
    if not wanted:
        raise InvalidInput(f"Specify the entry: {MEMORY_USAGE}.")
    named = _ID.fullmatch(wanted)
    of_id = [entry for entry in known if named and entry.id == named[1]]
    matches = [entry for entry in of_id if entry.is_changeable]
    matches = matches or entries_saying((entry for entry in known if entry.is_changeable), wanted)
    if not matches:
        more = EVERYBODYS if of_id or entries_saying(known, wanted) else "`/memory` shows what I remember."
        raise NotFound(f"No entry that you can change here matches {wanted[:200]!r}. {more}")
    if len({entry_key(entry.words) for entry in matches}) > 1:
        raise InvalidInput("\n".join(["Several entries match. Specify one by its id:", _listed(matches, "")]))
    return matches


def _listed(entries: Sequence[MemoryEntry], words: str) -> str:
    wanted = words.casefold().split()
    labels: dict[str, list[str]] = {}
    shown: dict[str, str] = {}
    for entry in entries:
        if all(word in entry.words.casefold() for word in wanted):
            note = entry.label if not entry.person else f"{entry.label}, only for you"
            labels.setdefault(entry.id, []).append(note if entry.is_changeable else f"{note}, for everyone")
            shown.setdefault(entry.id, _shown(entry.words))
    lines = [f"- `{id}` {text} ({'; '.join(dict.fromkeys(labels[id]))})" for id, text in shown.items()]
    if len(lines) > ENTRIES_LISTED_MAX:
        more = len(lines) - ENTRIES_LISTED_MAX
        lines = [*lines[:ENTRIES_LISTED_MAX], f"- and {more} more. `/memory WORDS` searches all entries."]
    return "\n".join(lines) or (
        "I remember nothing that contains these words." if wanted else "I remember nothing here yet."
    )


def _shown(words: str) -> str:
    line = " ".join(words.split()).replace("`", "'")
    return line if len(line) <= ENTRY_SHOWN_CHARS else f"{line[: ENTRY_SHOWN_CHARS - 1]}…"
