"""What people write in lines: which messages that wait are answered together, by one turn.

In a chat people send a thought in several messages. What one person has sent to a thread and is still waiting there is
one turn; another person's words are never among them, and a person's own messages keep their order.

    the next message of the same person       the turn that answers it
    ---------------------------------------   ---------------------------------------------------------------
    came from a chat, like those before       the one of their messages before it
    came by the API, or from no person        one of its own
    asks another agent or model, or they      one of its own, and those after it are not joined to those before
    have other roles now
    would be too much for one turn            the same

Messages that refer to others bring these along.
"""

from collections.abc import Sequence

import msgspec

from shoal.domain.messages import Prompt, bounded

LINES_MAX = 50
"""Messages that one turn answers."""
PAUSES_MAX = 10
"""How many pauses somebody who goes on writing is waited for."""
LINES_CHARS_MAX = 20_000
"""What they say together; a single message may be longer."""


class Waiting(msgspec.Struct, frozen=True):
    """What waits for a thread's next turn: `prompt`, and the messages that it joins as they were sent.

    `since` and `until` are when the first and the last of them were accepted, in microseconds. `is_all`: nothing else
    waits.
    """

    prompt: Prompt
    lines: tuple[Prompt, ...]
    since: int
    until: int
    is_all: bool = True


def pause_left(waiting: Waiting, before: Waiting | None, now: int, pause_seconds: float) -> float:
    """How many seconds to wait for further lines; `before` is what the thread answered last, `now` in microseconds.

    What begins something is answered at once. What follows other lines of the same person within the pause waits until
    they have paused, PAUSES_MAX pauses at most, and only while nobody else waits. So does a file or what is passed on,
    which seldom comes alone: platforms send the pictures of an album, and the words to it, one by one.
    """
    first = waiting.lines[0]
    follows = len(waiting.lines) > 1 or bool(first.attachments) or any(one.kind == "forward" for one in first.refers_to)
    if before is not None and before.lines[0].author.id == first.author.id:
        follows = follows or waiting.since - before.until <= pause_seconds * 1_000_000
    is_long = now - waiting.since >= PAUSES_MAX * pause_seconds * 1_000_000
    if not (first.in_chat and follows and waiting.is_all) or is_long:
        return 0.0
    return max(0.0, pause_seconds - abs(now - waiting.until) / 1_000_000)


def turns_of(prompts: Sequence[Prompt]) -> list[list[int]]:
    """The turns that answer what waits, in the order of their first messages; each names its messages by number."""
    turns: list[list[int]] = []
    newest: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        turn = newest.get(prompt.author.id)
        if turn is not None and _joins([prompts[one] for one in turn], prompt):
            turn.append(number)
        else:
            newest[prompt.author.id] = [number]
            turns.append(newest[prompt.author.id])
    return turns


def _joins(lines: Sequence[Prompt], prompt: Prompt) -> bool:
    first = lines[0]
    return (
        first.in_chat
        and prompt.in_chat
        and (first.author, first.agent, first.model) == (prompt.author, prompt.agent, prompt.model)
        and (first.direct, first.history, first.origin) == (prompt.direct, prompt.history, prompt.origin)
        and len(lines) < LINES_MAX
        and sum(len(line.text) for line in lines) + len(prompt.text) <= LINES_CHARS_MAX
    )


def joined(lines: Sequence[Prompt]) -> Prompt:
    """One message of several, which answers what the last one answered; itself where it is alone."""
    first, *rest = lines
    if not rest:
        return first
    return msgspec.structs.replace(
        first,
        text="\n".join(line.text for line in lines if line.text),
        attachments=tuple(file for line in lines for file in line.attachments),
        reply_to=next((line.reply_to for line in reversed(lines) if line.reply_to), ""),
        message_id=lines[-1].message_id or lines[-1].key,
        tainted_by=next((line.tainted_by for line in lines if line.tainted_by), ""),
        joined=tuple(line.message_id or line.key for line in lines[:-1]),
        refers_to=bounded([one for line in lines for one in line.refers_to]),
    )
