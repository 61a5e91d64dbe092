"""Skills as people write and delete them: checked and audited; an agent's can be taken back like its own changes."""

import hashlib
from contextlib import suppress
from pathlib import Path

from shoal.agents.self_edit import EDIT, History, read_file, write_file
from shoal.domain.blocking import in_thread
from shoal.domain.errors import Conflict, InvalidInput, NotFound, ToolError
from shoal.domain.records import AuditEntry
from shoal.store.audit import AuditLog
from shoal.turn.skills import SKILL_BYTES_MAX, SKILL_FILE, SkillProblem, SkillRoot, parse_skill

CHAIN = "skills"


async def put_skill(
    root: SkillRoot, agent_home: Path | None, name: str, text: str | None, by: str, audit: AuditLog
) -> None:
    """Write a skill below a root, or (None) delete it; one of the agent at `agent_home` is committed there.

    Raises InvalidInput for a text that is no skill, NotFound for one that is not there, Conflict where it
    cannot be kept, OSError, StoreError.
    """
    path = root.path / name / SKILL_FILE
    if text is not None:
        if len(text.encode()) > SKILL_BYTES_MAX:
            raise InvalidInput(f"A {SKILL_FILE} may have {SKILL_BYTES_MAX:,} bytes; put the rest into files beside it.")
        found = parse_skill(path, text, root.scope)
        if isinstance(found, SkillProblem):
            raise InvalidInput(found.text)
    new = None if text is None else text.encode()
    what = f"{'write' if text is not None else 'delete'} skill {name}"

    def make() -> bytes | None:
        old = read_file(path)
        if old is None and new is None:
            raise NotFound(f"There is no skill {name[:80]!r} of scope {root.scope}.")
        if agent_home is not None:
            agent_home.mkdir(parents=True, exist_ok=True)
            history = History(agent_home)
            history.open()
            write_file(path, new)
            edited = path.relative_to(agent_home).as_posix()
            history.record(path, what, by, f"{EDIT}: {edited}", f"Asked-by: {by}")
        else:
            write_file(path, new)
        if new is None:
            with suppress(OSError):  # other files of the skill stay
                path.parent.rmdir()
        return old

    try:
        old = await in_thread(make)
    except ToolError as error:  # git is missing, or at work on something else
        raise Conflict(str(error)) from error
    detail = f"{root.scope} before {_digest(old)} after {_digest(new)}"
    agent = agent_home.name if agent_home is not None else ""
    await audit.record(CHAIN, [AuditEntry("skill", what, "done", user=by, agent=agent, detail=detail)])


def _digest(content: bytes | None) -> str:
    return "nothing" if content is None else hashlib.sha256(content).hexdigest()
