"""What agents change of themselves: their settings, documents and skills; kept in git, audited, and taken back."""

import asyncio
import difflib
import hashlib
import re
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec

from shoal.agents.folder import FILE, set_key
from shoal.agents.history import EDIT, TAINT, History, read_file, restore, taint_of_undone, write_file
from shoal.domain.errors import InvalidInput, NotFound, ToolError
from shoal.domain.permissions import Asker
from shoal.domain.ports import ToolContext
from shoal.domain.records import AuditEntry
from shoal.domain.store import Store
from shoal.tools.builtin.self_edit import Edit
from shoal.tools.prompt_files import PromptFiles
from shoal.tools.threads import in_thread
from shoal.turn.skills import SkillProblem, parse_skill

TEXT_BYTES_MAX = 262_144
_SKILL = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PART = re.compile(r"[\w][\w .-]{0,99}")
_STRICTNESS = {"open": 0, "guarded": 1, "standard": 2, "locked": 3}


class Rules(msgspec.Struct, frozen=True):
    """What a change has to keep to: models and profiles that exist, and who may widen what an agent may do."""

    check_model: Callable[[str], None]
    check_profile: Callable[[str], None]
    may_widen: Callable[[Asker], bool]


class SelfEditor:
    """Plans and makes the changes. Implements what the tools ask for."""

    def __init__(self, store: Store, home_of: Callable[[str], Path], rules: Rules, files: PromptFiles) -> None:
        self._store = store
        self._home_of = home_of
        self._rules = rules
        self._files = files
        self._lock = asyncio.Lock()

    def setting(self, key: str, value: str, context: ToolContext) -> Edit:
        """Plan a change of agent.toml. Raises ToolError for a value that cannot be."""
        try:
            if key == "model":
                self._rules.check_model(value)
            if key == "profile":
                self._check_profile(value, context)
            return self._edit(context, FILE, _with_key(context.agent.home, key, value))
        except InvalidInput as error:
            raise ToolError(str(error)) from error

    def document(self, path: str, change: Callable[[str | None], str | None], context: ToolContext) -> Edit:
        """Plan a change of a file below docs/. Raises ToolError for a path outside."""
        parts = PurePosixPath(path.removeprefix("/docs/")).parts
        if not parts or not all(_PART.fullmatch(part) for part in parts):
            raise ToolError(f"{path[:200]!r} is no path below docs/: use names of letters, digits, spaces, . _ and -.")
        name = "/".join(("docs", *parts))
        old = self._read(context, name)
        new = change(None if old is None else old.decode("utf-8", "replace"))
        return self._edit(context, name, None if new is None else new.encode())

    def skill(self, name: str, text: str | None, context: ToolContext) -> Edit:
        """Plan a new, changed or (None) deleted skill of the agent. Raises ToolError for one that could not be used."""
        if not _SKILL.fullmatch(name) or len(name) > 64:
            raise ToolError(f"{name[:80]!r} is no name for a skill: small letters and digits with hyphens between.")
        file = f"skills/{name}/SKILL.md"
        if text is not None:
            found = parse_skill(context.agent.home / file, text, "agent")
            if isinstance(found, SkillProblem):
                raise ToolError(f"That is no skill yet: {found.text}")
        elif self._read(context, file) is None:
            raise ToolError(f"You have no skill {name!r} of your own.")
        return self._edit(context, file, None if text is None else text.encode())

    async def apply(self, edit: Edit, what: str, context: ToolContext) -> None:
        """Make a planned change, commit and audit it. Raises ToolError when the file is no more what it was."""
        folder = context.agent.home
        path = folder / edit.name
        approved = await self._approved_by(context)
        trailers = [f"{EDIT}: {edit.name}", f"Asked-by: {context.asker.user or 'nobody'}"]
        trailers += [f"Approved-by: {approved}"] if approved else []
        tainted_by = " ".join(context.purpose.tainted_by.split())
        trailers += [f"{TAINT}: {tainted_by}"] if tainted_by else []

        def make() -> None:
            history = History(folder)
            history.open()
            if read_file(path) != edit.old:
                raise ToolError(f"{edit.name} was changed meanwhile. Look at it and try again.")
            write_file(path, edit.new)
            history.record(path, what, context.agent.name, *trailers)

        async with self._lock:
            await in_thread(make)
            user, agent = context.asker.user, context.agent.name
            await self._audit(str(context.thread), what, user, agent, edit.old, edit.new, context.turn)

    async def undo(self, agent: str, by: str) -> str:
        """Take an agent's newest change of itself back; returns what it was. Raises NotFound, Conflict."""
        folder = self._home_of(agent)
        async with self._lock:
            source = await in_thread(lambda: taint_of_undone(folder))
            async with self._files.marking(source):
                subject, path, before, after = await in_thread(lambda: restore(folder))
            what = f"take back: {subject}"
            await self._audit(f"agent:{agent}", what, by, agent, before, after)
        return f"Taken back: {subject} ({path.relative_to(folder)}). It counts from the next turn on."

    def _check_profile(self, name: str, context: ToolContext) -> None:
        self._rules.check_profile(name)
        if self._rules.may_widen(context.asker):
            return
        now, then = context.agent.profile, name
        stricter = then == "locked" or _STRICTNESS.get(then, -1) >= _STRICTNESS.get(now, len(_STRICTNESS))
        if not stricter:
            raise ToolError(
                f"The profile {then!r} may allow more than {now!r}, and who asks may not grant that. The owner or an "
                "approver has to ask for it."
            )

    def _read(self, context: ToolContext, name: str) -> bytes | None:
        """A file of the agent's directory. Raises ToolError for one that leads elsewhere or is too large."""
        home = context.agent.home.resolve()
        path = home / name
        if path.resolve() != path:
            raise ToolError(f"{name} is a link, which is not followed.")
        if path.is_dir():
            raise ToolError(f"{name} is a directory.")
        content = read_file(path)
        if content is not None and len(content) > TEXT_BYTES_MAX:
            raise ToolError(f"{name} is larger than {TEXT_BYTES_MAX:,} bytes.")
        return content

    def _edit(self, context: ToolContext, name: str, new: bytes | None) -> Edit:
        if new is not None and len(new) > TEXT_BYTES_MAX:
            raise ToolError(f"{name} would be larger than {TEXT_BYTES_MAX:,} bytes.")
        old = self._read(context, name)
        if old == new:
            raise ToolError(f"{name} says that already, so there is nothing to change.")
        before, after = (
            [line.rstrip() for line in (content or b"").decode("utf-8", "replace").splitlines()]
            for content in (old, new)
        )
        diff = "\n".join(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm=""))
        return Edit(name, old, new, diff)

    async def _approved_by(self, context: ToolContext) -> str:
        asked = await self._store.approvals.search(pending=False, thread=context.thread)
        mine = [one for one in asked if one.turn == context.turn and one.call_id == context.call_id]
        return mine[0].decided_by if mine else ""

    async def _audit(
        self, chain: str, what: str, user: str, agent: str, old: bytes | None, new: bytes | None, turn: str = ""
    ) -> None:
        detail = f"before {_digest(old)} after {_digest(new)}"
        await self._store.audit.record(
            chain, [AuditEntry("self_edit", what, "done", user=user, agent=agent, turn=turn, detail=detail)]
        )


def _digest(content: bytes | None) -> str:
    return "nothing" if content is None else hashlib.sha256(content).hexdigest()


def _with_key(folder: Path, key: str, value: str) -> bytes:
    """The agent.toml with a key set, as it would be. Raises InvalidInput."""
    with tempfile.TemporaryDirectory(prefix="shoal-edit-") as name:
        there = Path(name)
        content = read_file(folder / FILE)
        if content is not None:
            (there / FILE).write_bytes(content)
        set_key(there, key, value)
        return (there / FILE).read_bytes()


def undo_in(folder: Path) -> str:
    """Take the newest change of an agent that does not run back; returns what it was. Raises NotFound, Conflict."""
    if not folder.is_dir():
        raise NotFound(f"There is no agent {folder.name!r}.")
    subject, path, _, _ = restore(folder)
    return f"Taken back: {subject} ({path.relative_to(folder)})."
