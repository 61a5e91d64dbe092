"""What the agent is told when a hook of a process fires."""

from datetime import datetime

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.foreign import untrusted_block
from shoal.domain.messages import Prompt
from shoal.domain.processes import ORIGIN, Hook, Process

COMMAND_CHARS_MAX = 500


def hook_prompt(process: Process, hook: Hook, what: str, said: str, output: str, clock: Clock) -> Prompt:
    """The message that a hook sends. `what` makes its key, so that the same firing is one message however often it is
    sent; `said` is what happened; `output` is marked as not to be trusted."""
    spec, key = process.spec, f"{ORIGIN}{process.id}:{what}"
    lines = [f"[The process {spec.title!r} ({process.id}) {said}.]", f"Its command: {spec.command[:COMMAND_CHARS_MAX]}"]
    if hook.note:
        lines.append(f"You noted for this: {hook.note}")
    if output:
        lines.append(untrusted_block(f"output of process {process.id}", output))
    text, called = "\n".join(lines), process.id if spec.tainted_by else spec.title  # a model chose the title
    return Prompt(
        spec.chat,
        key,
        untrusted_block(spec.tainted_by, text) if spec.tainted_by and spec.author.trusted else text,
        msgspec.structs.replace(spec.author, name=f"process {called} of {spec.author.name or spec.author.id}"),
        clock.now(),
        agent=spec.agent,
        origin="trigger",
        message_id=key,
        tainted_by=spec.tainted_by,
    )


def ending_of(process: Process) -> str:
    """How it ended, as the end of a sentence."""
    after = f" after {lasted(process, process.ended_at)}" if process.ended_at is not None else ""
    match process.state:
        case "exited":
            return f"ended with exit code {process.exit_code}{after}"
        case "killed":
            return f"was killed{after}{f': {process.reason}' if process.reason else ''}"
        case "lost":
            return f"was lost{after}: {process.reason}"
        case "failed":
            return f"could not be started: {process.reason}"
        case "running":
            return f"runs since {process.started_at:%Y-%m-%d %H:%M} UTC"


def lasted(process: Process, until: datetime | None) -> str:
    """How long it has run."""
    seconds = int(((until or process.seen_at) - process.started_at).total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def fits(hook: Hook, process: Process) -> bool:
    """Whether a hook is about this end. A lost process ends no other way, so every hook for ends is told."""
    if hook.on != "exit":
        return False
    return process.state == "lost" or not hook.codes or process.exit_code in hook.codes


def line_of(process: Process, now: datetime, *, is_named: bool = True) -> str:
    """A process in a line, for the agent and for people; without its name, which the model chose, unless `is_named`."""
    since = f"running for {lasted(process, now)}" if process.state == "running" else ending_of(process)
    return f"{process.id} {process.spec.title!r}: {since}" if is_named else f"{process.id}: {since}"
