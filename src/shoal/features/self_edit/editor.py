"""Changes that agents make to their own settings, persona files, documents and skills, and to SYSTEM.md, which all
agents share. Each change is planned, shown as a diff, and made if the permission engine allows it.
"""

import difflib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec

from shoal.agents.folder import FILE, read_agent, set_key
from shoal.agents.lifecycle import AgentLifecycle, Checks
from shoal.agents.versions import EDIT, PART, SYSTEM, TAINT, AgentVersions, place_of, read_file, write_file
from shoal.connections import Standing
from shoal.kernel import lazy_re
from shoal.kernel.agents import AgentSpec
from shoal.kernel.errors import InvalidInput, ToolError
from shoal.kernel.files import in_thread
from shoal.kernel.ids import channel_of
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.permissions import Action, Asker
from shoal.kernel.ports import ToolContext, ToolOutput
from shoal.kernel.untrusted import enclosed
from shoal.permissions.access import among
from shoal.permissions.profiles import Profiles
from shoal.store.store import Store
from shoal.tools.functions import Prepared, canonical, quoting
from shoal.turn.prompt import SYSTEM_TITLE, SystemPrompt, assemble
from shoal.turn.skills import SkillProblem, parse_skill

if TYPE_CHECKING:
    from shoal.services import Services

SYSTEM_FILE = "SYSTEM.md"
TEXT_BYTES_MAX = 262_144
_SKILL = lazy_re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_STRICTNESS = {"open": 0, "guarded": 1, "standard": 2, "locked": 3}


class PlannedEdit(NamedTuple):
    """A planned change to one file. `old` or `new` is None if the file does not exist before or after the change."""

    name: str
    old: bytes | None
    new: bytes | None
    diff: str


class SelfEditor(msgspec.Struct, eq=False):
    """Service that plans and makes an agent's changes to itself.

    New values must pass `checks`. An agent cannot list a tool that its profile always denies. Only a person who
    satisfies `may_widen` can extend the agent's permissions.
    """

    store: Store
    checks: Checks
    is_denied: Callable[[AgentSpec, Asker, str], bool]
    may_widen: Callable[[Asker], bool]
    versions: AgentVersions

    @classmethod
    def of(cls, services: "Services") -> Self:
        standing, managers = services[Standing], services[LiveConfig].current.agents.managers
        return cls(
            services[Store],
            services[AgentLifecycle].checks,
            services[Profiles].hides,
            among(managers, standing.approvers),
            services[AgentVersions],
        )

    def setting(self, key: str, value: str, context: ToolContext) -> PlannedEdit:
        """Plan a change to a key in agent.toml.

        Raises ToolError for an invalid value, and for a wider profile that the person who asks cannot grant.
        """
        try:
            self.checks.check(key, value)
            if key == "profile":
                now, then = context.agent.profile, value
                stricter = then == "locked" or _STRICTNESS.get(then, -1) >= _STRICTNESS.get(now, len(_STRICTNESS))
                if not stricter and not self.may_widen(context.asker):
                    raise ToolError(
                        f"The profile {then!r} may allow more than {now!r}, and the person who asks cannot grant "
                        "that. The owner or an approver must ask for it."
                    )
            with tempfile.TemporaryDirectory(prefix="shoal-edit-") as name:
                there = Path(name)
                content = read_file(context.agent.home / FILE)
                if content is not None:
                    (there / FILE).write_bytes(content)
                set_key(there, key, value)
                changed = (there / FILE).read_bytes()
            return self._edit(context, FILE, changed)
        except InvalidInput as error:
            raise ToolError(str(error)) from error

    def tools(self, names: Sequence[str], context: ToolContext) -> PlannedEdit:
        """Plan a new list of tools. An empty list means all tools.

        Raises ToolError for an unknown or denied tool, and for additional tools that the person who asks cannot grant.
        """
        try:
            for name in names:
                self.checks.tool(name)
                if self.is_denied(context.agent, context.asker, name):
                    raise ToolError(
                        f"Your profile {context.agent.profile!r} denies {name}, so listing it has no effect."
                    )
        except InvalidInput as error:
            raise ToolError(str(error)) from error
        has = context.agent.tools
        if has and (not names or set(names) - set(has)) and not self.may_widen(context.asker):
            raise ToolError(
                "The person who asks cannot give you additional tools. The owner or an approver must ask for them."
            )
        return self.setting("tools", msgspec.json.encode(list(names)).decode() if names else "", context)

    def persona(self, file: str, text: str, context: ToolContext) -> PlannedEdit:
        """Plan new text for a persona file or SYSTEM.md. Raises ToolError if the person who asks may not change
        SYSTEM.md.
        """
        if file == SYSTEM_FILE and not self.may_widen(context.asker):
            raise ToolError(
                f"{SYSTEM_FILE} is part of every agent's prompt, and the person who asks cannot change it. The owner "
                "or an approver must ask for it."
            )
        return self._edit(context, SYSTEM if file == SYSTEM_FILE else file, text.encode() or None)

    async def settings(self, context: ToolContext) -> str:
        """Return the agent's settings, one per line. Lists only the channels that this turn may see."""
        agent, channel = context.agent, channel_of(context.chat).removesuffix(":")
        places = [binding.place for binding in await self.store.registry.bindings() if binding.agent == agent.name]
        if not context.purpose.audience.everywhere:
            places = [place for place in places if place == channel]
        budget = {name: value for name, value in msgspec.structs.asdict(agent.budget).items() if value}
        lines = {
            "agent": agent.name,
            "model": agent.model,
            "fallback": ", ".join(agent.fallback) or "none",
            "profile": agent.profile,
            "tools": ", ".join(spec.name for spec in context.tools()) or "none",
            "budget": ", ".join(f"{name} = {value:,}" for name, value in budget.items()) or "no limits of its own",
            "bound channels": ", ".join(places) or "none visible here",
            "max_output_tokens": agent.max_output_tokens,
            "temperature": "the provider's default" if agent.temperature is None else agent.temperature,
            "idle_minutes": agent.idle_minutes,
            "restrict_to_workspace": "yes" if agent.restrict_to_workspace else "no",
            "taint": "yes" if agent.taint else "no",
        }
        return "\n".join(f"{name}: {value}" for name, value in lines.items())

    def document(self, path: str, change: Callable[[str | None], str | None], context: ToolContext) -> PlannedEdit:
        """Plan a change to a file below docs/. `change` maps the old text to the new text. None means that the file
        does not exist.

        Raises ToolError for any other path.
        """
        parts = PurePosixPath(path.removeprefix("/docs/")).parts
        if not parts or not all(PART.fullmatch(part) for part in parts):
            raise ToolError(
                f"{path[:200]!r} is not a path below docs/. Names can contain letters, digits, spaces, `.`, "
                "`_` and `-`."
            )
        name = "/".join(("docs", *parts))
        old = self._read(context, name)
        with quoting(context.agent.home / name):
            new = change(None if old is None else old.decode("utf-8", "replace"))
        return self._edit(context, name, None if new is None else new.encode())

    def skill(self, name: str, text: str | None, context: ToolContext) -> PlannedEdit:
        """Plan a change that writes one of the agent's skills, or deletes it if `text` is None. Raises ToolError for an
        invalid skill.
        """
        if not _SKILL.fullmatch(name) or len(name) > 64:
            raise ToolError(
                f"{name[:80]!r} is not a valid skill name. Use lowercase letters and digits, separated by hyphens."
            )
        file = f"skills/{name}/SKILL.md"
        if text is not None:
            skill = parse_skill(context.agent.home / file, text, "agent")
            if isinstance(skill, SkillProblem):
                raise ToolError(f"The skill is not valid: {skill.text}")
            if skill.name != name:
                raise ToolError(
                    f"The front matter names the skill {skill.name!r}, but the skill is called {name!r}. "
                    "Use the same name in both."
                )
        elif self._read(context, file) is None:
            raise ToolError(f"You have no skill {name!r} of your own.")
        return self._edit(context, file, None if text is None else text.encode())

    def prepared(self, name: str, edit: PlannedEdit, detail: str, context: ToolContext) -> Prepared:
        """Build the tool call that makes a planned change. People see the diff. An approval covers exactly this old and
        new content.
        """
        what = f"{name} {detail}".strip()

        async def work() -> ToolOutput:
            await self.apply(edit, what, context)
            done = "It takes effect on your next turn. `/agent undo` restores the old version."
            return ToolOutput(f"Changed {edit.name}. {done}")

        old, new = (None if content is None else content.hex() for content in (edit.old, edit.new))
        effect = canonical(name, file=edit.name, old=old, new=new)

        async def advice() -> str:
            return await self._advice(edit, context)

        return Prepared((Action(f"tool:{name}:{detail}"),), f"{what}\n\n{edit.diff}", effect, work, advice)

    async def _advice(self, edit: PlannedEdit, context: ToolContext) -> str:
        agent = context.agent
        checks = [check for check in self.versions.edit_checks if check.applies(agent.home)]
        if not checks:
            return ""

        def changed(system: SystemPrompt) -> SystemPrompt:
            """Replace the text of SYSTEM.md in the prompt. The copied files do not include SYSTEM.md."""
            heading, text = f"# {SYSTEM_TITLE}\n", enclosed((edit.new or b"").decode("utf-8", "replace"), 1)
            return assemble(
                msgspec.structs.replace(section, text=f"{heading}{text}" if text else "")
                if section.name == SYSTEM
                else section
                for section in system.sections
            )

        with tempfile.TemporaryDirectory(prefix="shoal-edit-") as name:
            there = Path(name) / agent.name
            try:
                before = read_agent(agent.home)
                await in_thread(lambda: _copy_files(agent.home, there))
                if edit.name != SYSTEM:
                    write_file(there / edit.name, edit.new)
                after = read_agent(there)
            except (OSError, InvalidInput) as error:
                return f"Shoal could not run the agent's test cases: {error}"
            own = {key: getattr(after, key) for key in ("model", "system_prompt", "tools", "profile")}
            new = {key: value for key, value in own.items() if value != getattr(before, key)}
            spec = msgspec.structs.replace(agent, home=there, **new)
            change = changed if edit.name == SYSTEM else None
            return "\n".join([await check.run(spec, agent.home, context.asker, change) for check in checks]).strip()

    async def apply(self, edit: PlannedEdit, what: str, context: ToolContext) -> None:
        """Make a planned change, commit it and audit it. Raises ToolError if the file has changed since the plan was
        made.
        """
        asked = await self.store.approvals.search(pending=False, thread=context.thread)
        mine = [approval for approval in asked if approval.turn == context.turn and approval.call_id == context.call_id]
        approved = mine[0].decided_by if mine else ""
        trailers = [f"{EDIT}: {edit.name}", f"Asked-by: {context.asker.user or 'nobody'}"]
        trailers += [f"Approved-by: {approved}"] if approved else []
        tainted_by = " ".join(context.purpose.tainted_by.split())
        trailers += [f"{TAINT}: {tainted_by}"] if tainted_by else []

        agent, user = context.agent, context.asker.user
        await self.versions.replace(agent.home, edit.name, edit.old, edit.new, what, agent.name, trailers)
        await self.versions.audit(str(context.thread), what, user, agent.name, edit.old, edit.new, context.turn)

    def _read(self, context: ToolContext, name: str) -> bytes | None:
        """Read a file in the agent's directory. Rejects links, directories and files larger than TEXT_BYTES_MAX."""
        home = context.agent.home.resolve()
        path = place_of(home, name)
        if path.resolve() != path:
            raise ToolError(f"{name} is a link. Shoal does not follow links.")
        if path.is_dir():
            raise ToolError(f"{name} is a directory.")
        content = read_file(path)
        if content is not None and len(content) > TEXT_BYTES_MAX:
            raise ToolError(f"{name} is larger than {TEXT_BYTES_MAX:,} bytes.")
        return content

    def _edit(self, context: ToolContext, name: str, new: bytes | None) -> PlannedEdit:
        if new and not new.endswith(b"\n"):
            new += b"\n"  # contents that differ only in this newline would have the same diff
        if new is not None and len(new) > TEXT_BYTES_MAX:
            raise ToolError(f"{name} would be larger than {TEXT_BYTES_MAX:,} bytes.")
        old = self._read(context, name)
        if old == new:
            raise ToolError(f"{name} already has this content.")
        diff = "\n".join(difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}", lineterm=""))
        return PlannedEdit(name, old, new, diff)


def _copy_files(folder: Path, there: Path) -> None:
    """Copy the files that are part of an agent's prompt, except links."""
    files = (*folder.glob("*.toml"), *folder.glob("*.md"), *folder.glob("docs/**/*"), *folder.glob("skills/**/*"))
    there.mkdir()
    for path in files:
        if path.is_file() and not path.is_symlink():
            target = there / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _lines(content: bytes | None) -> list[str]:
    return content.decode("utf-8", "replace").removesuffix("\n").split("\n") if content else []
