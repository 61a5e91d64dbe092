"""Traits of a tool: one frozen value on its decorator. No other module lists tools by name.

    used by                       question
    ---------------------------   ---------------------------------------------------------------------------------
    tools/offer                   whether models see it from the start
    permissions/profiles          how the built-in profiles treat its calls
    permissions/taint             what untrusted content could do through it
    tools/read_files              which files it reads
    tools/prompt_files            what it changes outside the workspace
    tools/checkpoints, undo       whether it may change the workspace, and what takes a change back
    turn/loop, tools/executor     whether calls may run together or again, and whose words its results are
    turn/prompt, evals, links     a line for the instructions, use in an agent's cases, what its results may hold

Tools of extensions have the defaults, unless their authors say more: nothing is known of them, so they count as able to
do anything, their results are foreign text, `standard` asks for each call and `locked` denies it. So do tools of MCP
servers until the owner has confirmed what kind each is.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

Effect: TypeAlias = Literal["read", "contained", "outward", "lasting", "unknown"]
"""The strongest effect of a call.

    read        changes nothing
    contained   changes only what a checkpoint can restore
    outward     leaves the machine or the conversation: network, messages, uploads, devices
    lasting     changes what no checkpoint covers: memory, schedules, the agent itself
    unknown     depends on the call (a command), or is not declared
"""

Offered: TypeAlias = Literal["always", "deferred", "if_few", "by_name"]
"""When models see it: always; after a search; always while its group is small; only if an agent names it."""

Names: TypeAlias = Literal["", "listed", "shown", "edited", "replaced", "sent", "command", "address", "query"]
"""Meaning of the detail of its actions: a folder to list; a file that is shown, edited, replaced unseen or sent unseen;
a shell command; the address of a page; a query for the configured search provider. Empty: anything."""

Harm: TypeAlias = Literal["", "none", "file", "command", "lasting", "agent", "message", "outside"]
"""Effect that untrusted content could have through it. `file` and `command` depend on the detail. Empty: not declared.
"""

Changes: TypeAlias = Literal["nothing", "workspace", "home", "anything"]
"""Files that a call may change: none; in the workspace; in the home outside of it; any."""

ResultOrigin: TypeAlias = Literal["foreign", "own", "mixed"]
"""Author of a tool's results: someone else, which wraps them and taints; the owner and Shoal; or mixed, where each
result names its untrusted content."""

RANK_LAST = 100
ANYTHING = "(?s:.*)"
A_LINE = ".*"
_NO_DOTS = r"(?!(.*/)?\.\.(/|$))"
READABLE = rf"((/(workspace|scratch|attachments|skills|docs|memory)(/|$))|(?![/~]|host:)){_NO_DOTS}.*"
"""A path in one of the agent's folders, as in actions. A path without a leading slash counts as inside the workspace;
the file tools never write one."""
WRITABLE = rf"(/(workspace|scratch)/|(?![/~]|host:)){_NO_DOTS}(?!(.*/)?\.git(/|$)).*"


class Treatment(msgspec.Struct, frozen=True):
    """Treatment of a tool's calls by one built-in profile.

    `allow` is a pattern of details that run. All others need approval, are denied, or depend on rules of the `owner`,
    without which they are denied. Empty means by effect in `standard`, and like `owner` elsewhere. `allows` and
    `others` describe this in words, for lists of rules.
    """

    allow: str = ""
    allows: str = ""
    otherwise: Literal["", "ask", "deny", "owner"] = ""
    others: str = ""


class Treatments(msgspec.Struct, frozen=True):
    """Treatment of a tool by the built-in profiles. `open` allows everything. `standard` decides by the effect unless
    the tool declares a treatment."""

    locked: Treatment = Treatment()
    standard: Treatment = Treatment()
    guarded: Treatment = Treatment(ANYTHING)


UNTREATED = Treatments()
LOOKED_UP = Treatment(A_LINE, "looking up the time, memory, skills, reminders and past messages")
KEEPS = Treatments(standard=Treatment(ANYTHING, "remembering and reminders"))
AGENT_ITSELF = "changing the agent itself"


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """The traits of a tool. The defaults are those of an unknown tool.

    Calls of one step may run together if their `effect` is "read". An `idempotent` call that was in flight at a crash
    is run again. `open_world` marks a read that asks another system. A call `for_trusted` has an unknown effect if
    anyone untrusted influenced the turn. A call that `can_stage` may wait until its turn ends: the model does not need
    the result. `runs_commands` starts processes, which is asked for where no sandbox isolates them. One that `waits`
    may give its result later; such calls, one after the other in a step, wait together. Of the tools that are always
    offered, those with the lowest `rank` stay longest in a small window.

    `harmless` are details of calls that do no harm whatever steers them. `for_person`: in a direct conversation it
    changes nothing that anybody but its person may see. `keeps` names the kind of files whose text remains in what a
    call writes (`tools/prompt_files.py`). `shows_output`: its results are output of commands, which the model may have
    composed. `in_cases`: it may run while an agent's cases are checked. `guidance` is a line of the instructions of
    agents that have the tool.
    """

    group: str = "extension"
    offered: Offered = "if_few"
    rank: int = RANK_LAST
    effect: Effect = "unknown"
    open_world: bool = False
    for_trusted: bool = False
    can_stage: bool = False
    idempotent: bool = False
    runs_commands: bool = False
    waits: bool = False
    origin: ResultOrigin = "foreign"
    names: Names = ""
    harm: Harm = ""
    harmless: tuple[str, ...] = ()
    changes: Changes = "anything"
    undo: Literal["", "files", "agent"] = ""
    keeps: str = ""
    for_person: bool = False
    shows_output: bool = False
    in_cases: bool = False
    guidance: str = ""
    treatments: Treatments = UNTREATED

    @property
    def read_only(self) -> bool:
        return self.effect == "read"

    @property
    def shows_file(self) -> bool:
        """Whether its action names a file or folder that the model sees."""
        return self.names in ("listed", "shown")

    @property
    def writes_file(self) -> bool:
        """Whether its action names a file that the call changes."""
        return self.names in ("edited", "replaced")

    @property
    def takes_commands(self) -> bool:
        """Whether its actions are shell commands."""
        return self.names == "command"


UNKNOWN = Traits()
LOOKUP = Traits(
    group="lookup",
    offered="deferred",
    effect="read",
    idempotent=True,
    origin="mixed",
    harm="none",
    treatments=Treatments(locked=LOOKED_UP),
)
"""Traits of a tool that only shows content that the agent may see anyway."""


class TraitsByName:
    """The traits of tools by name. Other names have those of an unknown tool.

    `version` changes with the built-in profiles' treatments.
    """

    def __init__(self, traits: Mapping[str, Traits] = MappingProxyType({})) -> None:
        self._traits: dict[str, Traits] = {}
        self.version = 0
        for name, value in traits.items():
            self.add(name, value)

    def add(self, name: str, traits: Traits) -> None:
        self._traits[name] = traits
        self._changed(traits)

    def remove(self, name: str) -> None:
        self._changed(self._traits.pop(name, UNKNOWN))

    def of(self, name: str) -> Traits:
        return self._traits.get(name, UNKNOWN)

    def items(self) -> list[tuple[str, Traits]]:
        """Return all traits by name, sorted."""
        return sorted(self._traits.items(), key=lambda item: item[0])

    def names(self, which: Callable[[Traits], bool]) -> tuple[str, ...]:
        """Return the names of selected tools, sorted."""
        return tuple(sorted(name for name, traits in self._traits.items() if which(traits)))

    def _changed(self, traits: Traits) -> None:
        if traits.treatments != UNTREATED or traits.names:
            self.version += 1


NO_TOOLS = TraitsByName()
