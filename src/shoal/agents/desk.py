"""What the slash commands do, for every platform: a person asks, the desk does it and answers with a text."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from shoal.domain.commands import COMMANDS, Asked
from shoal.domain.errors import ShoalError, StoreError
from shoal.domain.events import Scope
from shoal.domain.ids import ApprovalId, ThreadId
from shoal.domain.messages import Abort, Inbound, Receipt, Steer
from shoal.domain.permissions import Asker, Audience
from shoal.permissions.access import Audiences

log = logging.getLogger(__name__)

Answers = Callable[[Asked], Awaitable[str]]
NO_ANSWERS: Mapping[str, Answers] = {}


class Floor(Protocol):
    """What the desk asks of the orchestrator."""

    async def send(self, message: Inbound) -> Receipt:
        """Accept a message."""
        ...

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Settle an approval."""
        ...

    async def clear(self, thread: ThreadId, by: str) -> None:
        """Start the window anew."""
        ...

    async def status(self, thread: ThreadId, audience: Audience) -> str:
        """What the thread does, as far as it is for this audience."""
        ...


class Desk:
    """Implements `domain.ports.CommandDesk`. `further` are groups of commands, by name, that others answer."""

    def __init__(self, floor: Floor, audiences: Audiences, further: Mapping[str, Answers] = NO_ANSWERS) -> None:
        self._floor = floor
        self._audiences = audiences
        self.answers: dict[str, Answers] = {
            "help": self._help,
            "new": self._new,
            "status": self._status,
            "stop": self._stop,
            "steer": self._steer,
            "approve": self._approve,
            "deny": self._deny,
            **further,
        }

    async def command(self, asked: Asked) -> str:
        """Do it. What is wrong with the request is the answer; raises StoreError when the database fails."""
        answer = self.answers.get(asked.name)
        if answer is None:
            return f"There is no command /{asked.name}. Write /help for those there are."
        try:
            return await answer(asked)
        except StoreError:
            raise
        except ShoalError as error:
            return str(error)
        except OSError as error:
            log.warning("a command failed", extra={"command": asked.name, "why": str(error)})
            return f"That failed on this machine: {error.strerror or 'the disk said no'}."

    async def _help(self, asked: Asked) -> str:
        lines = [f"- `{f'/{spec.name} {spec.usage}'.strip()}` {spec.description}" for spec in COMMANDS.values()]
        return "Write to me and I answer. Commands:\n\n" + "\n".join(lines)

    async def _new(self, asked: Asked) -> str:
        await self._floor.clear(asked.thread, asked.author.id)
        return "We start anew. What was said before is kept, but I do not look at it."

    async def _status(self, asked: Asked) -> str:
        audience = self._audiences.of(asked.asker, asked.author, asked.thread)
        return await self._floor.status(asked.thread, audience)

    async def _stop(self, asked: Asked) -> str:
        receipt = await self._floor.send(Abort(asked.thread, asked.author, asked.argument.lower() == "all"))
        return "Stopping." if receipt.delivered else "Nothing runs here."

    async def _steer(self, asked: Asked) -> str:
        if not asked.argument:
            return "Write what I should know after /steer."
        receipt = await self._floor.send(Steer(asked.thread, asked.key, asked.argument, asked.author, asked.at))
        return "" if receipt.status in ("delivered", "duplicate") else "Nothing runs here; write it as a message."

    async def _approve(self, asked: Asked) -> str:
        await self._floor.decide(ApprovalId(asked.argument), True, asked.asker)
        return "Allowed."

    async def _deny(self, asked: Asked) -> str:
        await self._floor.decide(ApprovalId(asked.argument), False, asked.asker)
        return "Denied."
