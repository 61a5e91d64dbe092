"""Traits of a tool, which its decorator declares. No other module lists tools by name.

    used by                       to decide
    ---------------------------   --------------------------------------------------------------------------------
    tools/offer                   whether models see the tool from the start
    permissions/profiles          how the built-in profiles treat its calls
    permissions/taint             which effects untrusted content could cause through it
    tools/read_files              which files it reads
    tools/prompt_files            what it changes outside the workspace
    tools/checkpoints, undo       whether it may change the workspace, and how to undo a change
    turn/loop, tools/executor     whether its calls may run together or be repeated, and who wrote the results
    turn/prompt                   which instructions it adds to the prompt
    evals                         whether agents' test cases may run it
    links                         which URLs its results may contain

A tool from an extension has the default traits unless its author declares others. By default, a tool may have any
effect, its results are untrusted, `standard` asks before each call, and `locked` denies each call. Tools of MCP
servers have the same defaults until the owner confirms the kind of each tool.
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
"""When models see a tool.

`always`: from the start.
`deferred`: after a search.
`if_few`: from the start, if its group is small.
`by_name`: only if an agent names it.
"""

Names: TypeAlias = Literal["", "listed", "shown", "edited", "replaced", "sent", "command", "address", "query"]
"""What the detail of an action names. Empty means any text.

`listed`: a folder to list.
`shown`: a file to show.
`edited`: a file to edit.
`replaced`: a file to overwrite without reading it.
`sent`: a file to send without showing it.
`command`: a shell command.
`address`: the URL of a page.
`query`: a query for the configured search provider.
"""

Harm: TypeAlias = Literal["", "none", "file", "command", "lasting", "agent", "message", "outside"]
"""Effect that untrusted content could cause through a tool. Empty if not declared.

`file` and `command` depend on the detail of the action.
"""

Changes: TypeAlias = Literal["nothing", "workspace", "home", "anything"]
"""Files that a call may change.

`nothing`: no files.
`workspace`: files in the workspace.
`home`: files in the home directory, outside the workspace.
`anything`: any files.
"""

ResultOrigin: TypeAlias = Literal["foreign", "own", "mixed"]
"""Author of a tool's results.

    foreign   someone else; the results are wrapped and taint the turn
    own       the owner or Shoal
    mixed     each result names its untrusted content
"""

RANK_LAST = 100
ANYTHING = "(?s:.*)"
A_LINE = ".*"
_NO_DOTS = r"(?!(.*/)?\.\.(/|$))"
READABLE = rf"((/(workspace|scratch|attachments|skills|docs|memory)(/|$))|(?![/~]|host:)){_NO_DOTS}.*"
"""Pattern for paths in the agent's folders, as actions contain them.

A path without a leading slash is relative to the workspace. The file tools never produce such paths.
"""
WRITABLE = rf"(/(workspace|scratch)/|(?![/~]|host:)){_NO_DOTS}(?!(.*/)?\.git(/|$)).*"


class Treatment(msgspec.Struct, frozen=True):
    """A built-in profile's treatment of a tool's calls.

    `allows` and `others` are descriptions for people, shown in lists of rules.
    """

    allow: str = ""
    """Pattern for the details of calls that are allowed."""
    allows: str = ""
    otherwise: Literal["", "ask", "deny", "owner"] = ""
    """Treatment of all other calls. If empty, the effect decides in the profile `standard`, and the owner's rules
        decide in other profiles.

        `ask`: the calls need approval.
        `deny`: the calls are denied.
        `owner`: the owner's rules decide. A call that matches no rule is denied.
    """
    others: str = ""


class Treatments(msgspec.Struct, frozen=True):
    """Treatment of a tool's calls in each built-in profile. `open` allows everything.

    In `standard`, the effect of a call decides unless the tool declares a treatment.
    """

    locked: Treatment = Treatment()
    standard: Treatment = Treatment()
    guarded: Treatment = Treatment(ANYTHING)


UNTREATED = Treatments()
LOOKED_UP = Treatment(A_LINE, "looking up the time, memory, skills, reminders and past messages")
KEEPS = Treatments(standard=Treatment(ANYTHING, "remembering and reminders"))
AGENT_ITSELF = "changing the agent itself"


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """Traits of a tool. The defaults apply to unknown tools."""

    group: str = "extension"
    offered: Offered = "if_few"
    rank: int = RANK_LAST
    """Position among the tools that are always offered. If the context window is small, the tools with the highest
    ranks are omitted.
    """
    effect: Effect = "unknown"
    """Effect of a call. Calls with the effect `read` in one step may run concurrently."""
    open_world: bool = False
    """Whether a read-only call contacts another system."""
    for_trusted: bool = False
    """True if the declared effect applies only to turns that only trusted people influenced. In other turns, the effect
    is unknown.
    """
    can_stage: bool = False
    """Whether a call can be staged until the turn ends, because the model does not need the result."""
    idempotent: bool = False
    """Whether Shoal repeats a call that a crash interrupted."""
    runs_commands: bool = False
    """Whether the tool starts processes. Without an isolating sandbox, these need approval."""
    waits: bool = False
    """True if the result may arrive later. Consecutive calls of such tools in one step wait together."""
    origin: ResultOrigin = "foreign"
    names: Names = ""
    harm: Harm = ""
    harmless: tuple[str, ...] = ()
    """Details of calls that are harmless even if untrusted content controls them."""
    changes: Changes = "anything"
    undo: Literal["", "files", "agent"] = ""
    keeps: str = ""
    """Kind of files whose existing text is preserved by a call (`tools/prompt_files.py`)."""
    for_person: bool = False
    """True if a call in a direct conversation changes only content that the person in that conversation sees."""
    shows_output: bool = False
    """True if the results contain the output of commands. The model may have composed such output."""
    in_cases: bool = False
    """Whether agents' test cases may run the tool."""
    guidance: str = ""
    """Line to add to the instructions of agents that have the tool."""
    treatments: Treatments = UNTREATED

    @property
    def read_only(self) -> bool:
        return self.effect == "read"

    @property
    def shows_file(self) -> bool:
        """True if the tool's action names a file or folder that the model sees."""
        return self.names in ("listed", "shown")

    @property
    def writes_file(self) -> bool:
        """True if the tool's action names a file that the call changes."""
        return self.names in ("edited", "replaced")

    @property
    def takes_commands(self) -> bool:
        """True if the tool's actions are shell commands."""
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
"""Traits of a tool that only shows content that the agent is already allowed to see."""


class TraitsByName:
    """Traits of tools by name. A name that is not listed has the traits of an unknown tool.

    `version` increases when a change may affect the built-in profiles.
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
        return sorted(self._traits.items(), key=lambda item: item[0])

    def names(self, which: Callable[[Traits], bool]) -> tuple[str, ...]:
        return tuple(sorted(name for name, traits in self._traits.items() if which(traits)))

    def _changed(self, traits: Traits) -> None:
        if traits.treatments != UNTREATED or traits.names:
            self.version += 1


NO_TOOLS = TraitsByName()
